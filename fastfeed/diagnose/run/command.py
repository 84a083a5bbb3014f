"""Commands of a diagnosis: of a script that runs, and of evidence that was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastfeed.diagnose.anonymous import anonymised
from fastfeed.diagnose.diagnosis import Diagnosis
from fastfeed.diagnose.evidence_file import UNREADABLE, damaged, read_evidence, write_evidence
from fastfeed.diagnose.report.terminal import render
from fastfeed.diagnose.run.launch import run
from fastfeed.diagnose.run.lifecycle import WatchPlan
from fastfeed.diagnose.run.observe import DiagnosisObserver
from fastfeed.errors import OptionError


def diagnose(
    script: tuple[str, ...],
    *,
    seconds: float,
    warmup: float,
    no_experiments: bool,
    stop: bool,
    anonymous: bool,
    **files: Path | None,
) -> int:
    """Diagnose a script while it runs; return its exit code. `files`: reports by their kind.

    `anonymous`: the file of evidence holds no paths, arguments and names of the user's own.

    Raise OptionError for a bad option, or if there is no such script.
    """
    if warmup >= seconds:
        raise OptionError(
            f"--warmup is part of --seconds: it must be less than {seconds:g}, got {warmup:g}"
        )
    plan = WatchPlan(seconds, warmup, experiments=not no_experiments, stop=stop)
    return run(
        list(script), plan=plan, observer=DiagnosisObserver(_show, anonymous=anonymous, **files)
    )


def replay(path: Path, *, evidence: Path | None, anonymous: bool, **options: Any) -> None:
    """Judge recorded evidence again, and write the reports whose path is given.

    The options of a run do not matter. `evidence` gets the recording again, as `anonymous` says.
    Raise OptionError for another file, OSError as open does.
    """
    # these import numpy, which a diagnosis of a script must not do before the script
    from fastfeed.diagnose.judge.judgement import judge
    from fastfeed.diagnose.report.writers import write_reports

    found = read_evidence(path)
    found = anonymised(found) if anonymous else found
    try:
        diagnosis = judge(found.evidence, script=found.script, died=found.died)
    except UNREADABLE as error:
        raise damaged(path, error) from error
    written = write_reports(diagnosis, {kind: options[kind] for kind in ("json", "html", "trace")})
    if evidence is not None:
        write_evidence(found, evidence)
        written.append(evidence)
    _show(diagnosis, written)


def _show(diagnosis: Diagnosis, written: list[Path]) -> None:
    from fastfeed.jobs.drawing import Terminal

    console = Terminal(stderr=True)
    console.print(render(diagnosis))
    if written:
        console.print("written: " + ", ".join(map(str, written)), soft_wrap=True)
