"""Each command that a page shows runs there, with files that its reader would have: for less time,
and on other data."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from fastfeed.diagnose.prove.prove_command import EXIT_NOTHING
from tests.helpers.pages import PAGES, ROOT, Block, blocks, name_of

COMMAND = re.compile(r"^\s*(fastfeed|fastfeed-bench|python|pip|make|git|cd) ", re.MULTILINE)
# of the subcommands that measure
SHORTER = {
    "bench": ("--seconds", "0.3", "--repeats", "1"),
    "diagnose": ("--seconds", "2", "--warmup", "0.5"),
}
PROOF = ("--budget", "30")
# that may also say no, and how
NO = {"--assert-au": 1, "--fail-if-slower": 1, "--prove": EXIT_NOTHING}
LIMIT_S = 240
TRAIN = """\
import time

import numpy as np
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 24_000

    def __getitem__(self, number):
        time.sleep(0.001)
        return np.float32(number) ** 2


if __name__ == "__main__":
    for batch in DataLoader(Squares(), batch_size=16):
        time.sleep(0.004)
"""
BATCHES = """\
import itertools
import time

import numpy as np


def batches(worker):
    for number in itertools.count(worker.index, worker.count):
        time.sleep(0.005)
        yield np.full((4, 3), number)


callable = batches
"""


def commands() -> list[Block]:
    """Return the blocks of commands, each text once."""
    found = {block.code: block for page in PAGES for block in blocks(page) if is_commands(block)}
    return list(found.values())


def is_commands(block: Block) -> bool:
    return block.language == "sh"


def calls(block: Block) -> Iterator[list[str]]:
    """Yield the words of each line of a block."""
    for line in block.code.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


def shorter(words: list[str]) -> list[str]:
    """Return the words of a call of fastfeed which measures for less time."""
    given = SHORTER.get(words[0], ()) + (PROOF if "--prove" in words else ())
    own = words[: words.index("--")] if "--" in words else words
    for option, long in pairwise(own):
        if option == "--seconds":
            words = [given[1] if word == long else word for word in words]
    return [words[0], *given, *words[1:]]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a reader, with a training and functions that make batches."""
    for name in ("feed.py", "mymodule.py", "my/module.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(BATCHES)
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def training(place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A training that runs."""
    with subprocess.Popen([sys.executable, "train.py"], cwd=place) as process:
        yield process
        process.kill()


@pytest.mark.slow
@pytest.mark.timeout(900)  # several commands, each with a limit of its own
@pytest.mark.parametrize("block", commands(), ids=lambda block: block.code.split("\n")[0][:60])
def test_commands_run(block: Block, place: Path, request: pytest.FixtureRequest) -> None:
    for words in calls(block):
        if "--pid" in words:
            running = request.getfixturevalue("training")
            words[words.index("--pid") + 1] = str(running.pid)
        RUNS[words[0]](words[1:])


def run(command: list[str], folder: Path, *, allowed: tuple[int, ...] = (0,)) -> str:
    """Run a command to its end and return what it printed."""
    done = subprocess.run(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode in allowed, done.stdout
    return done.stdout


def of_fastfeed(words: list[str]) -> None:
    allowed = (0, *(status for option, status in NO.items() if option in words))
    run([sys.executable, "-m", "fastfeed", *shorter(words)], Path.cwd(), allowed=allowed)


def of_an_example(words: list[str]) -> None:
    """Those have tests of their own: the program and its options exist."""
    told = run([sys.executable, str(ROOT / words[0]), "--help"], ROOT)
    options = [word for word in words[1:] if word.startswith("--")]
    assert not [word for word in options if word not in told]


def of_make(words: list[str]) -> None:
    assert run(["make", "--dry-run", *words], ROOT)


def of_pip(words: list[str]) -> None:
    """`.ci/distribution` installs it; the extras exist."""
    found = configparser.ConfigParser()
    found.read(ROOT / "setup.cfg")
    extras = re.findall(r"\[(.*)\]", words[-1])
    assert words[0] == "install"
    assert {one for names in extras for one in names.split(",")} <= set(
        found["options.extras_require"]
    )


RUNS = {
    "fastfeed": of_fastfeed,
    "fastfeed-bench": lambda words: of_fastfeed(["bench", *words]),
    "python": of_an_example,
    "make": of_make,
    "pip": of_pip,
    "git": lambda words: None,  # the address of a copy is not known here
    "cd": lambda words: None,
}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_of_commands_is_named_so(page: Path) -> None:
    others = [block for block in blocks(page) if block.language not in ("python", "sh")]
    assert not [block.line for block in others if COMMAND.search(block.code)]
