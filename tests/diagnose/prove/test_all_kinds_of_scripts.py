"""Scripts of every form run in copies, twice and with a change, and leave the project as it is."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fastfeed.diagnose.patches.source_file import Edit
from fastfeed.diagnose.prove.trial import Trials
from fastfeed.diagnose.prove.workspace import Workspace
from fastfeed.diagnose.run.script import Script

LOOP = """\
import time
import fastfeed
def train(times=60):
    for _ in fastfeed.watch(range(times)):
        time.sleep(0.005)
"""
BEGIN = LOOP + "train()\n"
# What each script is, and how it is called.
SCRIPTS: dict[str, tuple[dict[str, str], list[str]]] = {
    "file": ({"train.py": BEGIN}, ["train.py"]),
    "module": (
        {
            "pack/__init__.py": "",
            "pack/loop.py": LOOP,
            "pack/train.py": "from .loop import train\ntrain()\n",
        },
        ["-m", "pack.train"],
    ),
    "package": (
        {"pack/__init__.py": LOOP, "pack/__main__.py": "from pack import train\ntrain()\n"},
        ["-m", "pack"],
    ),
    "two folders": (
        {
            "lib/loop.py": LOOP,
            "scripts/train.py": "import os, sys\n"
            "sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'lib'))\n"
            "from loop import train\ntrain()\n",
            ".git/HEAD": "",
        },
        ["scripts/train.py"],
    ),
    "arguments": (
        {
            "train.py": LOOP + "import argparse\nparser = argparse.ArgumentParser()\n"
            "parser.add_argument('--times', type=int, required=True)\n"
            "train(parser.parse_args().times)\n"
        },
        ["train.py", "--times", "60"],
    ),
    "files": (
        {
            "train.py": LOOP + "open('log.txt', 'a').write('a run')\n"
            "import os\nos.makedirs('out')\nopen('out/model', 'x').close()\ntrain()\n",
            "log.txt": "before",
        },
        ["train.py"],
    ),
    "port": (
        {
            "train.py": LOOP + "import os, socket\n"
            "server = socket.create_server(('127.0.0.1', int(os.environ['PORT'])))\n"
            "client = socket.create_connection(server.getsockname())\ntrain()\n"
        },
        ["train.py"],
    ),
    "generated": (
        {"train.py": LOOP + "exec('def go():\\n    train()\\n')\ngo()\n"},
        ["train.py"],
    ),
    "standard input": (
        {"train.py": LOOP + "import sys\ntrain(len(sys.stdin.readlines()))\n"},
        ["train.py"],
    ),
}


@pytest.fixture
def trials_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Trials]:
    """Make runs of a script of some files, the working folder being theirs."""

    def make(files: dict[str, str], words: list[str]) -> Trials:
        folder = tmp_path / "project"
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
            (folder / name).chmod(0o444)  # none may be written to
        monkeypatch.chdir(folder)
        (scratch := tmp_path / "scratch").mkdir()
        room = Workspace(Script(words), scratch=scratch, environment={"PORT": "0"})
        return Trials(room, seconds=5.0, end_s=math.inf)

    return make


@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_script_of_any_form_runs_with_a_change(
    kind: str, trials_of: Callable[..., Trials], tmp_path: Path
) -> None:
    files, words = SCRIPTS[kind]
    (tmp_path / "lines").write_text("a line\n" * 60)
    kept, given = os.dup(0), os.open(tmp_path / "lines", os.O_RDONLY)
    os.dup2(given, 0)
    try:
        trials = trials_of(files, words)
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(given)
    name, text = next((name, text) for name, text in files.items() if "range(times)" in text)
    end = text.index("times)):") + len("times")
    edit = Edit(str(Path.cwd() / name), end, end, " - 20")
    before = {path: path.read_text() for path in Path.cwd().rglob("*.*") if path.is_file()}
    for edits in ((), (edit,), ()):  # each ends before its window
        found = trials.rate(edits, seconds=30.0, warmup=0.0)
        assert not found.failed, "or its changed file was not used"
    after = {path: path.read_text() for path in Path.cwd().rglob("*.*") if path.is_file()}
    assert after == before


def test_a_change_that_fails_shows_where(trials_of: Callable[..., Trials]) -> None:
    trials = trials_of(*SCRIPTS["file"])
    at = BEGIN.index("0.005")
    edit = Edit(str(Path.cwd() / "train.py"), at, at, "[0] * ")
    found = trials.rate([edit], seconds=1.0, warmup=0.0)
    assert "TypeError" in found.failed
    assert Path("train.py").read_text() == BEGIN
