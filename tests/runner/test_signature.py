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
PROGRAM = """
from fastfeed import Augment, FeedRunner, Mix, ProducerDied, Shuffle

runner: FeedRunner = FeedRunner([1, 2], threads=2, shuffle=Shuffle(10, 5), memory="1GB")
valid: FeedRunner = runner.also([1, 2], batch_size=1)
a = FeedRunner([1], threads="two")
b = FeedRunner([1], thread=2)
c = FeedRunner([1], order="shuffled")
d = FeedRunner([1], 4)
e = FeedRunner([1]).also([1], batchsize=2)
"""
WRONG = {6, 7, 8, 9, 10}  # lines
# the package as a user has it: its own settings do not apply; frameworks take a minute to read
SETTINGS = """[mypy]
ignore_missing_imports = True
follow_imports = silent
[mypy-cv2.*,jax.*,keras.*,matplotlib.*,nvidia.*,ray.*,tensorboard.*,tensorflow.*,torch.*]
follow_imports = skip
follow_imports_for_stubs = True
"""
CHECKERS = {
    "mypy": [sys.executable, "-m", "mypy", "--strict", "--cache-dir", ".cache"],
    "pyright": [sys.executable, "-m", "pyright", "--pythonpath", sys.executable],
}


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_type_checkers_know_the_options(checker: str, tmp_path: Path) -> None:
    pytest.importorskip(checker)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "fastfeed").symlink_to(ROOT / "fastfeed")
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    command = [*CHECKERS[checker], "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    lines = [
        line.split("program.py:")[1] for line in done.stdout.splitlines() if "program.py:" in line
    ]
    assert {int(line.split(":")[0]) for line in lines if "error" in line} == WRONG, done.stdout


def test_help_describes_every_option_once() -> None:
    for kind in (FeedOptions, FeedRunner):
        text = getdoc(kind) or ""
        lines = [line.partition(":")[0] for line in text.splitlines() if ": " in line]
        assert [n for n in lines if n in FeedOptions.__dataclass_fields__], kind
        for field in fields(FeedOptions):
            assert lines.count(field.name) == 1, (kind, field.name)


def test_the_second_runner_shows_the_options_too() -> None:
    assert {f.name for f in fields(FeedOptions)} < set(signature(FeedRunner.also).parameters)
