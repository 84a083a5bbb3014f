"""Commands of a diagnosis: of a script that runs, and of evidence that was recorded."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastfeed.diagnose.anonymous import anonymised
from fastfeed.diagnose.diagnosis import Diagnosis
from fastfeed.diagnose.evidence_file import UNREADABLE, Recording, damaged, read_evidence
from fastfeed.diagnose.report.terminal import render
from fastfeed.diagnose.run.launch import rank_of, run
from fastfeed.diagnose.run.lifecycle import WatchPlan
from fastfeed.diagnose.run.publisher import Publisher
from fastfeed.diagnose.sample.job_sampler import JobSampler
from fastfeed.errors import OptionError
from fastfeed.probes import family, procfs
from fastfeed.probes.pyspy import watchers_of

REPORTS = ("json", "html", "trace")
ANOTHER_DIAGNOSIS = (
    "the job without another diagnosis: one of process {pid} runs, too, and what it costs the job "
    "is a part of what was seen"
)


def diagnose(
    script: tuple[str, ...],
    *,
    warmup: float,
    no_experiments: bool,
    anonymous: bool,
    **options: Any,
) -> int:
    """Diagnose a script while it runs; return its exit code. `options`: seconds, stop and live of
    the `WatchPlan`, and the paths of reports by their kind.

    `anonymous`: the file of evidence holds no paths, arguments and names of the user's own.

    Raise OptionError for a bad option, or if there is no such script.
    """
    files = {kind: options.pop(kind) for kind in (*REPORTS, "evidence")}
    plan = WatchPlan(warmup_s=warmup, experiments=not no_experiments, **options)
    publisher = Publisher(_nothing if rank_of() else _show, anonymous=anonymous, **files)
    return run(list(script), plan=plan, publisher=publisher)


def attach(pid: int, *, seconds: float, stop: bool, live: bool, **options: Any) -> None:
    """Diagnose a job that runs already, from outside; see `diagnose` for the options.

    Raise OptionError if it cannot be watched.
    """
    if stop:
        raise OptionError("--stop ends a script that fastfeed has started: leave it out with --pid")
    if live:
        raise OptionError("--live changes a job that fastfeed has started: leave it out with --pid")
    kept: dict[str, Any] = {name: options[name] for name in (*REPORTS, "evidence", "anonymous")}
    watch_job(pid, seconds=seconds, publisher=Publisher(_show, **kept))


def watch_job(pid: int, *, seconds: float, publisher: Publisher) -> None:
    """Watch a process and its children from outside for some seconds, and report.

    Raise OptionError if it cannot be watched.
    """
    name, others = _checked(pid), watchers_of(pid)
    with contextlib.closing(JobSampler(pid)) as sampler:
        sampler.run(seconds)
        found = sampler.evidence()
    if others:
        found = replace(found, missing=(*found.missing, ANOTHER_DIAGNOSIS.format(pid=pid)))
    publisher.report(Recording(found, f"{name} (process {pid})"))


def replay(path: Path, *, evidence: Path | None, anonymous: bool, **options: Any) -> None:
    """Judge recorded evidence again, and write the reports whose path is given.

    The options of a run do not matter. `evidence` gets the recording again, as `anonymous` says.
    Raise OptionError for another file, OSError as open does.
    """
    found = read_evidence(path)
    found = anonymised(found) if anonymous else found
    files: dict[str, Any] = {kind: options.get(kind) for kind in REPORTS}
    try:
        Publisher(_show, evidence=evidence, **files).report(found)
    except UNREADABLE as error:
        raise damaged(path, error) from error


def _nothing(diagnosis: Diagnosis, written: list[Path]) -> None:
    """Show nothing: the first of several ranks prints its report."""


def _show(diagnosis: Diagnosis, written: list[Path]) -> None:
    from fastfeed.jobs.drawing import Terminal

    console = Terminal(stderr=True)
    console.print(render(diagnosis), crop=False)
    if written:
        console.print("written: " + ", ".join(map(str, written)), soft_wrap=True)


def _checked(pid: int) -> str:
    """Return the name of the script that a process runs, else of its program.

    Raise OptionError if it cannot be watched.
    """
    if pid == os.getpid():
        raise OptionError(f"--pid {pid} is this very command: give the pid of the training")
    stat, process = procfs.stat_of(pid), family.process_of(pid)
    words = process.command.split()
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except FileNotFoundError:
        owner = -1
    if stat.state in ("", "Z") or owner < 0:
        raise OptionError(
            f"--pid {pid}: no such process runs; `ps x` and `fastfeed top` list those of yours"
        )
    if os.geteuid() not in (0, owner):
        raise OptionError(
            f"--pid {pid} ({stat.name}) is a process of another user (uid {owner}): run fastfeed "
            "as that user, or as root"
        )
    if not process.python or not words:
        raise OptionError(
            f"--pid {pid} ({stat.name}) runs no Python: give the pid of the interpreter that "
            "trains, which may be one of its children"
        )
    return os.path.basename(next((word for word in words if word.endswith(".py")), words[0]))
