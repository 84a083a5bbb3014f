"""The options of FeedRunner, as type checkers, editors and help() see them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from inspect import getdoc, signature
from pathlib import Path

import pytest

from fastfeed import FeedOptions, FeedRunner

ROOT = Path(__file__).parents[2]
USE = """
from fastfeed import Augment, FeedRunner, Mix, ProducerDied, Shuffle

runner: FeedRunner = FeedRunner([1, 2], threads=2, shuffle=Shuffle(10, 5), memory="1GB")
valid: FeedRunner = runner.also([1, 2], batch_size=1)
"""
MISUSE = """
from fastfeed import FeedRunner

a = FeedRunner([1], threads="two")
b = FeedRunner([1], thread=2)
c = FeedRunner([1], order="shuffled")
d = FeedRunner([1], 4)
e = FeedRunner([1]).also([1], batchsize=2)
"""
CHECKERS = {
    "mypy": [sys.executable, "-m", "mypy", "--strict", "--cache-dir", ".cache"],
    "pyright": [sys.executable, "-m", "pyright", "--pythonpath", sys.executable],
}


def checked(checker: str, program: str, folder: Path) -> tuple[int, set[int]]:
    """Return the exit code of a checker, and the lines that it complains about."""
    (folder / "program.py").write_text(program)
    # the package as a user has it: its own settings do not apply
    (folder / "fastfeed").symlink_to(ROOT / "fastfeed")
    (folder / "mypy.ini").write_text(
        "[mypy]\nignore_missing_imports = True\nfollow_imports = silent\n"
    )
    done = subprocess.run(
        [*CHECKERS[checker], "program.py"], cwd=folder, capture_output=True, text=True, timeout=200
    )
    lines = [
        line.split("program.py:")[1] for line in done.stdout.splitlines() if "program.py:" in line
    ]
    return done.returncode, {int(line.split(":")[0]) for line in lines if "error" in line}


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_type_checkers_know_the_options(checker: str, tmp_path: Path) -> None:
    pytest.importorskip(checker)
    for name, program, wrong in (("use", USE, set()), ("misuse", MISUSE, {4, 5, 6, 7, 8})):
        folder = tmp_path / name
        folder.mkdir()
        assert checked(checker, program, folder) == (bool(wrong), wrong)


def test_help_describes_every_option_once() -> None:
    for kind in (FeedOptions, FeedRunner):
        text = getdoc(kind) or ""
        lines = [line.partition(":")[0] for line in text.splitlines() if ": " in line]
        assert [n for n in lines if n in FeedOptions.__dataclass_fields__], kind
        for field in fields(FeedOptions):
            assert lines.count(field.name) == 1, (kind, field.name)


def test_the_second_runner_shows_the_options_too() -> None:
    assert {f.name for f in fields(FeedOptions)} < set(signature(FeedRunner.also).parameters)
