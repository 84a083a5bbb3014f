"""`fastfeed diagnose --prove`: from a script to a patch with its measured gain."""

from __future__ import annotations

import ast
import difflib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fastfeed.core.user_code import is_users
from fastfeed.diagnose.diagnosis import Diagnosis
from fastfeed.diagnose.judge.judgement import judge
from fastfeed.diagnose.patches.catalogue import proposals_of
from fastfeed.diagnose.patches.proposal import SHOWING, PatchCase
from fastfeed.diagnose.patches.source_file import Edit, SourceFile
from fastfeed.diagnose.proof import Proof
from fastfeed.diagnose.prove.gains import pace_of
from fastfeed.diagnose.prove.process_session import ends_as_interrupted
from fastfeed.diagnose.prove.progress import ProveProgress
from fastfeed.diagnose.prove.search import Search
from fastfeed.diagnose.prove.trial import Seen, Trials
from fastfeed.diagnose.prove.workspace import Workspace
from fastfeed.diagnose.report.terminal import render
from fastfeed.diagnose.report.writers import write_reports
from fastfeed.diagnose.run.script import EXIT_INTERRUPTED, Script
from fastfeed.errors import OptionError, StateError
from fastfeed.jobs.drawing import Terminal

EXIT_NOTHING = 3  # nothing gained
PATCH_FILE = "fastfeed.patch"
REPORT_SHARE = 0.02  # of the budget: for the end of the last run, and the report
# Of a run that measures a rate, after its warm-up.
WINDOW_STEPS, WINDOW_PAUSES, MIN_WINDOW_S = 120, 5, 5.0
SAMPLED_KIND = "sampled"
WATCHED = "__import__('fastfeed').watch(("


@dataclass(frozen=True)
class ProofPlan:
    """Options of a proof: of its diagnosis and runs, `seconds` with the `warmup_s`; `budget_s` for
    all. `environment`: more variables of each run."""

    seconds: float = 20.0
    warmup_s: float = 2.0
    budget_s: float = 300.0
    also_rarer: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


def run(
    script: Sequence[str],
    *,
    budget: float,
    apply_diff: bool,
    also_rarer: bool,
    prove_env: Sequence[str],
    **options: Any,
) -> int:
    """Prove what makes a script faster, and report; return the exit code. `options`: those of a
    diagnosis.

    Raise OptionError for a bad option, and as `prove` does.
    """
    environment = dict(_variable(one) for one in prove_env)
    plan = ProofPlan(options["seconds"], options["warmup"], budget, also_rarer, environment)
    console = Terminal(stderr=True)
    try:
        with ends_as_interrupted():
            diagnosis, code, base = prove(Script(script), plan=plan, progress=ProveProgress(budget))
    except KeyboardInterrupt:
        console.print("interrupted before the diagnosis was made: nothing was tried")
        return EXIT_INTERRUPTED
    diff = diagnosis.proof.diff if diagnosis.proof else ""
    written = write_reports(diagnosis, {kind: options[kind] for kind in ("json", "html")})
    console.print(render(diagnosis), crop=False)
    if diff:
        console.print(apply(diff, base=base) if apply_diff else write(diff, base=base))
    if written:
        console.print("written: " + ", ".join(map(str, written)), soft_wrap=True)
    return code


def _variable(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise OptionError(f"--prove-env {text}: needed NAME=VALUE, such as OUT={{run}}/out")
    return name, value


def prove(
    script: Script, *, plan: ProofPlan, progress: ProveProgress
) -> tuple[Diagnosis, int, Path]:
    """Return the diagnosis of a script with its proof, the exit code, and the folder that the diff
    is for.

    Raise OptionError if the script cannot be copied, StateError if it cannot be diagnosed.
    """
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fastfeed-prove-") as scratch, closing(progress):
        workspace = Workspace(script, scratch=Path(scratch), environment=plan.environment)
        end_s = begin_s + plan.budget_s * (1 - REPORT_SHARE)
        trials = Trials(workspace, seconds=plan.seconds, end_s=end_s)
        case, marks, unmarked = diagnosed(
            trials, workspace, warmup_s=plan.warmup_s, tell=progress.tell
        )
        diagnosis, files = case.diagnosis, case.files
        proposals = list(proposals_of(case)) if diagnosis.figures is not None else []
        shown = [one for one in proposals if one.rarer and not plan.also_rarer]
        search = Search(
            trials,
            [one for one in proposals if one not in shown],
            marks=marks,
            seconds=_window_s(diagnosis, plan.seconds),
            period_s=diagnosis.figures.period_s if diagnosis.figures is not None else 0.0,
            tell=progress.tell,
        )
        code = 0
        try:
            search.run()
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
        took_s = time.monotonic() - begin_s
        untried = [f"anything: {unmarked}"] * bool(unmarked)
        untried += [
            f"{one.title}: your script would do it less often (--also-rarer)" for one in shown
        ]
        untried += case.failed
        proof = _proof(search, untried=untried, files=files, base=workspace.base, seconds=took_s)
        if not proof.diff and not code:
            code = EXIT_NOTHING
    return replace(diagnosis, proof=proof), code, workspace.base


def diagnosed(
    trials: Trials, workspace: Workspace, *, warmup_s: float, tell: Callable[[str], None]
) -> tuple[PatchCase, tuple[Edit, ...], str]:
    """Return the diagnosis beside the sources, the edits that make steps visible in every run, and
    why they could not be made visible, "" if they are.

    Where no step is seen, the loop is marked in the copy, and the script is diagnosed once more.
    Raise StateError if the script cannot be diagnosed.
    """
    tell("the diagnosis")
    found = trials.diagnose(warmup=warmup_s)
    if isinstance(found, str):
        raise StateError(f"the script could not be diagnosed: {found}")
    case = _case_of(found, workspace)
    watched = watched_at(case)
    if not watched:
        return case, marks_of(case), ""
    hint = case.diagnosis.evidence.hint
    marked = f"with the steps of {hint.place if hint else ''} marked"
    tell(f"the diagnosis, {marked}")
    again = trials.diagnose(warmup=warmup_s, edits=watched)
    if isinstance(again, str):
        return case, (), f"{marked}, the script could not be diagnosed: {again}"
    return _case_of(again, workspace), watched, ""


def _case_of(seen: Seen, workspace: Workspace) -> PatchCase:
    evidence, recording = seen.recording.evidence, seen.recording
    if evidence.loop is not None and WATCHED in evidence.loop.text:  # no line of the user's
        evidence = replace(evidence, loop=replace(evidence.loop, text=""))
    diagnosis = judge(evidence, script=recording.script, died=recording.died)
    # A folder may hold other scripts, with functions of the same names, and fastfeed itself.
    names = {name for name in seen.files if is_users(name)}
    files = {name: file for name, file in workspace.sources.items() if name in names}
    script = str(workspace.script or "")
    return PatchCase(diagnosis, files=files, calls=seen.calls, script=script)


def apply(diff: str, *, base: Path) -> str:
    """Write a diff to a clean git tree, else to a file; return what was done."""
    # of the whole tree, and of the files of the diff, which may be new
    names = [one.removeprefix("+++ b/") for one in diff.splitlines() if one.startswith("+++ b/")]
    clean = _git(base, "status", "--porcelain", "--untracked-files=no")
    if clean == "":
        clean = _git(base, "status", "--porcelain", "--ignored", "--", *names)
    if clean == "" and _git(base, "apply", "-", given=diff) is not None:
        return "the changes were written to the working tree"
    why = "is no git tree" if clean is None else "has changes that are not committed"
    why = "takes no patch from git" if clean == "" else why
    return f"not applied, because {base} {why}: {write(diff, base=base)}"


def write(diff: str, *, base: Path) -> str:
    """Write a diff to a file; return what was done."""
    path = base / PATCH_FILE
    try:
        path.write_text(diff, newline="", encoding="utf-8")
    except OSError as error:
        return f"the changes could not be written to {path} ({error.strerror}): they stand above"
    where = "" if base == Path.cwd() else f"-C {base} "
    return f"the changes are in {path}: git {where}apply {PATCH_FILE}"


def diff_of(edits: Iterable[Edit], files: Mapping[str, SourceFile], *, base: Path) -> str:
    """Return edits as a unified diff that `git apply` takes in a folder above all files."""
    found: list[str] = []
    by_file: dict[str, list[Edit]] = {}
    for edit in edits:
        by_file.setdefault(edit.file, []).append(edit)
    for name, changed in sorted(by_file.items()):
        shown = os.path.relpath(name, base)
        before, after = (_lines(files[name].stored(one)) for one in ((), changed))
        for line in difflib.unified_diff(before, after, f"a/{shown}", f"b/{shown}"):
            end = "" if line.endswith("\n") else "\n\\ No newline at end of file\n"
            found.append(line + end)
    return "".join(found)


def _lines(text: str) -> list[str]:
    """Return the lines as git counts them, with their ends."""
    *lines, last = text.split("\n")
    return [f"{line}\n" for line in lines] + [last] * bool(last)


def _window_s(diagnosis: Diagnosis, seconds: float) -> float:
    """Return how long a run is watched: long enough for some steps, and for some pauses such as
    those between epochs, and no longer than the diagnosis."""
    period_s = diagnosis.figures.period_s if diagnosis.figures is not None else 0.0
    loop = diagnosis.evidence.loop
    known_s = WINDOW_PAUSES * pace_of([one.end_s for one in loop.steps]).cycle_s if loop else 0.0
    return min(seconds, 2.0 + max(MIN_WINDOW_S, WINDOW_STEPS * period_s, known_s))


def marks_of(case: PatchCase) -> tuple[Edit, ...]:
    """Return the edits that make the steps of a loop without hooks visible, in every run."""
    loop, at = case.diagnosis.evidence.loop, case.loop_line()
    if loop is None or at is None or loop.kind != SAMPLED_KIND:
        return ()
    file, line = at
    loops: list[ast.For | ast.While] = file.around(line, ast.For, ast.While)
    first = loops[0].body[0] if loops else None
    edit = file.inserted(first, [SHOWING.format("tick()")]) if first is not None else None
    return (edit,) if edit is not None else ()


def watched_at(case: PatchCase) -> tuple[Edit, ...]:
    """Return the edits that mark the input of the loop whose steps were not seen; no line moves."""
    hint = case.diagnosis.evidence.hint
    file = case.file_named(hint.place.file) if hint is not None and hint.loops else None
    if file is None or hint is None:
        return ()
    loops = [one for one in file.around(hint.place.line, ast.For) if one.lineno == hint.place.line]
    if not loops:
        return ()
    begin, end = file.span(loops[0].iter)
    return (Edit(file.name, begin, begin, WATCHED), Edit(file.name, end, end, "))"))


def _proof(
    search: Search,
    *,
    untried: Sequence[str],
    files: Mapping[str, SourceFile],
    base: Path,
    seconds: float,
) -> Proof:
    """Return what a search found; `untried`: changes that were not to be tried, and why."""
    failed = [f"anything: the script as it is gave no figures: {search.failed}"]
    speedup, interval, words = search.total()
    before, after = search.rates
    return Proof(
        before=before,
        after=after,
        speedup=speedup,
        interval=interval,
        batches=words,
        diff=diff_of(search.edits, files, base=base),
        tried=tuple(one.tried() for one in search.candidates if one.runs),
        untried=(
            *failed * bool(search.failed),
            *untried,
            *(f"{one.proposal.title}: {one.why}" for one in search.candidates if not one.runs),
        ),
        seconds=seconds,
        waiting=search.kept[-1].waiting if search.kept else None,
    )


def _git(folder: Path, *words: str, given: str = "") -> str | None:
    """Return what a git command prints; None if it fails."""
    try:
        found = subprocess.run(
            ["git", "-C", str(folder), *words],
            input=given.encode(),
            capture_output=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.decode(errors="replace")
