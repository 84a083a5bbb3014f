"""`fastfeed diagnose --prove` as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import fastfeed.errors
from fastfeed.cli import main
from fastfeed.diagnose.evidence import MarkHint
from fastfeed.diagnose.evidence_file import Recording
from fastfeed.diagnose.patches.proposal import PatchCase, read_sources
from fastfeed.diagnose.patches.source_file import Edit, SourceFile, edited
from fastfeed.diagnose.prove.prove_command import (
    EXIT_NOTHING,
    PATCH_FILE,
    apply,
    diagnosed,
    diff_of,
    watched_at,
)
from fastfeed.diagnose.prove.trial import Seen
from fastfeed.diagnose.run.script import EXIT_INTERRUPTED
from fastfeed.probes.places import Place
from tests.diagnose.patches.patching import Script, line_of

FASTFEED = (sys.executable, "-c", "from fastfeed.cli import main; main()")
SLOW = """\
import sys
import time

import numpy as np
from made import batches

from fastfeed import FeedRunner

runner = FeedRunner(batches, threads=1)
for number, batch in enumerate(runner):
    time.sleep(0.005)  # the step on the accelerator
    if number > int(sys.argv[1]):
        break
"""
MADE = """\
import time

import numpy as np


def batches():
    rng = np.random.default_rng()
    while True:
        time.sleep(0.03)
        yield rng.random((8, 4))
"""


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    found = subprocess.run(
        ["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return found.stdout


def project(folder: Path, text: str = SLOW) -> Path:
    (folder / "train.py").write_text(text)
    (folder / "made.py").write_text(MADE)
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    return folder


def prove(folder: Path, *options: str, script: tuple[str, ...] = ("train.py", "100000")) -> Any:
    command = [*FASTFEED, "diagnose", "--prove", "--seconds", "5", "--warmup", "1", *options]
    return subprocess.run(
        [*command, "--json", "../out.json", "--html", "../out.html", "--", *script],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=230,
    )


@pytest.mark.slow
def test_a_runner_with_too_few_producers_gets_more(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    done = prove(project(folder), "--budget", "150")
    assert done.returncode == 0, done.stderr
    proof = json.loads((tmp_path / "out.json").read_text())["proof"]
    assert proof["speedup"] > 1.2
    assert proof["interval"][0] > 1.0
    assert proof["sentence"] in " ".join(done.stderr.split())
    assert "threads=1" in proof["diff"]
    assert 0.0 <= proof["waiting"] <= 1.0
    git(folder, "apply", PATCH_FILE)
    assert git(folder, "status", "--porcelain").split() == ["M", "train.py", "??", PATCH_FILE]
    added = [line[1:] for line in proof["diff"].splitlines() if line.startswith("+runner")]
    assert added and added[0] in (folder / "train.py").read_text()
    assert "Proven" in (tmp_path / "out.html").read_text()


@pytest.mark.slow
def test_a_loop_whose_step_is_the_limit_proves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    text = SLOW.replace("0.005", "0.05").replace("threads=1", "threads=4")
    done = prove(project(folder, text), "--budget", "60")
    assert done.returncode == EXIT_NOTHING, done.stderr
    assert json.loads((tmp_path / "out.json").read_text())["proof"]["diff"] == ""
    assert git(folder, "status", "--porcelain") == ""


def test_a_script_that_fails_is_shown_with_its_error(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    done = prove(project(folder, "raise ValueError('no data')\n"), "--budget", "60")
    assert done.returncode == 2
    assert "ValueError: no data" in done.stderr
    assert git(folder, "status", "--porcelain") == ""


@pytest.mark.slow
def test_a_change_that_the_script_does_not_import_is_refused(tmp_path: Path) -> None:
    """The module that is changed comes from another folder than the copy."""
    folder, other = tmp_path / "project", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    loop = SLOW.replace("runner = ", "def make():\n    return ").replace("for number", "#")
    text = "import sys\nsys.path.insert(0, sys.argv[2])\nimport feeds\nimport time\n"
    text += "for batch in feeds.make():\n    time.sleep(0.005)\n"
    for where in (folder, other):
        project(where, text)
        (where / "feeds.py").write_text(loop.split("#")[0])
    done = prove(folder, "--budget", "60", script=("train.py", "1", str(other)))
    assert done.returncode == EXIT_NOTHING, done.stderr
    proof = json.loads((tmp_path / "out.json").read_text())["proof"]
    assert proof["diff"] == ""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_every_run(number: signal.Signals, tmp_path: Path) -> None:
    folder, scratch = tmp_path / "project", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    # a job in the background inherits the signal ignored
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    program = [sys.executable, "-c", f"{heard}{FASTFEED[-1]}"]
    command = [*program, "diagnose", "--prove", "--seconds", "60", "--", "train.py", "100000"]
    running = subprocess.Popen(
        command,
        cwd=project(folder),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    assert running.stderr is not None
    assert "diagnosis" in running.stderr.readline()
    try:
        os.kill(running.pid, number)
        _, errors = running.communicate(timeout=60)
    finally:
        running.kill()
        running.communicate()
    assert running.returncode == EXIT_INTERRUPTED
    assert "nothing was tried" in errors
    assert "Traceback" not in errors
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True)
    assert left.stdout == ""
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--budget", "60", "--", "train.py"), "need a SCRIPT to run"),
        (("--apply", "--pid", "1"), "need a SCRIPT to run"),
        (("--prove", "--pid", "1"), "need a SCRIPT to run"),
        (("--prove", "--prove-env", "OUT", "--", "train.py"), "needed NAME=VALUE"),
        (("--prove", "--", "nowhere.py"), "can't open 'nowhere.py': there is no such file"),
        (("--proof", "--", "train.py"), "Did you mean"),
        (("--second", "5", "train.py"), "--seconds"),
        (("--pid", "1", "train.py", "--budget", "5"), "--budget is passed to the script"),
        (("--prove", "--stop", "--", "train.py"), "--stop is no option of --prove"),
        (("--prove", "--evidence", "e.gz", "--", "train.py"), "--evidence is no option of"),
    ],
)
def test_bad_options_are_refused(words: tuple[str, ...], text: str) -> None:
    found = CliRunner().invoke(main, ["diagnose", *words])
    assert found.exit_code == 2
    assert text in " ".join(found.output.replace("│", " ").split())


@pytest.mark.parametrize(
    "text", ["a = 1\nb = 2\n", "a = 1\nb = 2", "a = 1\r\nb = 2\r\n", "a = 1\n\f\nb = 2\n"]
)
def test_git_applies_a_diff(tmp_path: Path, text: str) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "sub").mkdir()
    path = tmp_path / "sub" / "one.py"
    path.write_bytes(text.encode())
    file = SourceFile(path)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    edit = Edit(str(path), text.index("2"), text.index("2") + 1, "3")
    diff = diff_of([edit], {str(path): file}, base=tmp_path)
    assert "working tree" in apply(diff, base=tmp_path)
    assert path.read_bytes() == text.replace("2", "3").encode()
    dirty = apply(diff, base=tmp_path)
    assert "has changes that are not committed" in dirty and PATCH_FILE in dirty
    assert (tmp_path / PATCH_FILE).exists()
    (tmp_path / PATCH_FILE).unlink()
    git(tmp_path, "checkout", "-q", "--", ".")
    git(tmp_path, "rm", "-q", "--cached", "sub/one.py")
    git(tmp_path, "commit", "-qm", "two")
    new = apply(diff, base=tmp_path)
    assert "has changes that are not committed" in new, "git could not bring it back"
    assert path.read_bytes() == text.encode()
    nowhere = apply(diff, base=tmp_path / "nowhere")
    assert "is no git tree" in nowhere and "they stand above" in nowhere


PLAIN = """
def batches():
    while True: yield 1
def main():
    for x, y in batches(), batches():
        step(x)
"""


def unseen(folder: Path) -> PatchCase:
    """The case of a loop whose steps were not seen."""
    case = Script(folder, PLAIN, kind="sampled", loop="for x, y").case()
    place = Place("main", "train.py", line_of(PLAIN, "for x, y"), users=True)
    seen = replace(case.diagnosis.evidence, hint=MarkHint(place, 1.0, True))
    case.diagnosis = replace(case.diagnosis, evidence=seen)
    return case


def test_the_loop_whose_steps_were_not_seen_is_marked_in_its_line(tmp_path: Path) -> None:
    assert watched_at(Script(tmp_path, PLAIN, kind="sampled", loop="for x, y").case()) == ()
    marked = edited(PLAIN, watched_at(unseen(tmp_path))).split("\n")
    assert marked[4] == "    for x, y in __import__('fastfeed').watch((batches(), batches())):"
    assert len(marked) == len(PLAIN.split("\n"))


class FailingAgain:
    """Runs of a script without steps, of which the first works."""

    def __init__(self, case: PatchCase) -> None:
        seen = Seen(Recording(case.diagnosis.evidence), [], frozenset(case.files))
        self.found: list[Any] = [seen, "exit 1: FileExistsError"]

    def diagnose(self, *, warmup: float, edits: tuple[Edit, ...] = ()) -> Any:
        assert bool(edits) == (len(self.found) == 1)
        return self.found.pop(0)


def test_why_the_loop_could_not_be_marked_is_said(tmp_path: Path) -> None:
    case = unseen(tmp_path)
    workspace: Any = SimpleNamespace(script=case.script, sources=case.files)
    trials: Any = FailingAgain(case)
    _, marks, failed = diagnosed(trials, workspace, warmup_s=1.0, tell=lambda text: None)
    assert (marks, trials.found) == ((), [])
    assert failed == (
        "with the steps of `main` at train.py:5 marked, the script could not be diagnosed: exit 1: "
        "FileExistsError"
    )


def test_only_files_of_the_users_that_the_script_imported_are_changed(tmp_path: Path) -> None:
    case = Script(tmp_path, PLAIN, kind="sampled", loop="for x, y").case()
    own = Path(fastfeed.errors.__file__)
    sources = {**case.files, **read_sources([project(tmp_path) / "made.py", own])}
    workspace: Any = SimpleNamespace(script=case.script, sources=sources)
    seen = Seen(Recording(case.diagnosis.evidence), [], frozenset([case.script, str(own)]))
    trials: Any = SimpleNamespace(diagnose=lambda **options: seen)
    found, _, failed = diagnosed(trials, workspace, warmup_s=1.0, tell=lambda text: None)
    assert (list(found.files), len(sources), failed) == ([case.script], 3, "")
