"""Each block of Python in the pages is complete: it runs alone, as a reader would paste it.
tests/examples/test_recipes.py runs those of docs/recipes.md, on data made there."""

from __future__ import annotations

import ast
import builtins
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fastfeed import FeedRunner
from tests.helpers.pages import PAGES, ROOT, Block, blocks, name_of

RECIPES = ROOT / "docs" / "recipes.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"
SERVICE = """\
import tensorflow as tf

made = tf.data.experimental.service
dispatcher = made.DispatchServer()
config = made.WorkerConfig(dispatcher_address=dispatcher.target.split("://")[1])
worker = made.WorkerServer(config)
"""
# each begins a line of a program and of nothing else that the pages show
PYTHON = re.compile(r"^(import|from|def|with|for) ", re.MULTILINE)
# the first line of a block that a page asks to save, and that its other blocks may import
SAVED = re.compile(r"# (\w+)\.py\n")
# two steps in place of a training of minutes
SHORTER = {TUTORIAL: {"return 6400": "return 32", "in range(20)": "in range(2)"}}


def python(page: Path) -> list[Block]:
    """Return the blocks of Python."""
    return [block for block in blocks(page) if block.language == "python"]


def cases() -> list[Any]:
    """Return each block that runs, with its page; those that the tutorial saves have a test of
    their own."""
    return [
        pytest.param(page, block, id=f"{name_of(page)}:{block.line}")
        for page in PAGES
        for block in python(page)
        if page != RECIPES and not (page == TUTORIAL and SAVED.match(block.code))
    ]


def modules(code: str) -> set[str]:
    """Return the packages that code imports and that may not be installed."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            found.add(str(node.module).partition(".")[0])
    return found - {*sys.stdlib_module_names, "fastfeed", "numpy"}


def undefined(code: str) -> set[str]:
    """Return the names that code uses and defines nowhere, also in functions that never run."""
    used, defined = set(), {*dir(builtins), "__name__"}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else defined).add(node.id)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        if isinstance(node, ast.arg):
            defined.add(node.arg)
        if isinstance(node, ast.alias):
            defined.add(node.asname or node.name.partition(".")[0])
    return used - defined


class Reader:
    """Pastes blocks of a page into files of a folder, and runs them there as scripts."""

    def __init__(self, page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.page, self.folder, self.monkeypatch = page, folder, monkeypatch
        monkeypatch.chdir(folder)

    def run(self, block: Block) -> dict[str, Any]:
        """Run a block and nothing else, and return its names."""
        for before in python(self.page):
            if before.line < block.line and SAVED.match(before.code):
                self.save(before)
        return runpy.run_path(str(self.file(block)), run_name="__main__")

    def save(self, block: Block) -> None:
        """Make the module of a block that the page asks to save."""
        module = ModuleType(SAVED.match(block.code)[1])
        file = self.file(block)
        exec(compile(file.read_text(), file, "exec"), vars(module))
        self.monkeypatch.setitem(sys.modules, module.__name__, module)

    def file(self, block: Block) -> Path:
        """Return a file of the block, in which each line has its number in the page."""
        for module in sorted(modules(block.code)):
            pytest.importorskip(module)
        code = block.code
        for long, short in SHORTER.get(self.page, {}).items():
            code = code.replace(long, short)
        file = self.folder / f"{self.page.stem}-{block.line}.py"
        file.write_text("\n" * block.line + code)
        return file


@pytest.mark.filterwarnings("ignore:.*missing from the checkpoint:UserWarning")
@pytest.mark.parametrize(("page", "block"), cases())
def test_a_block_runs_alone(
    page: Path, block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Reader(page, tmp_path, monkeypatch).run(block)


def test_the_tutorial_trains_and_its_batches_feed_a_runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = Reader(TUTORIAL, tmp_path, monkeypatch)
    train, feed = (b for b in python(TUTORIAL) if SAVED.match(b.code))
    assert all(long in train.code for long in SHORTER[TUTORIAL])
    reader.run(train)
    assert re.fullmatch(r"0 \d\S+\n1 \d\S+\n", capsys.readouterr().out)
    with FeedRunner(reader.run(feed)["batches"], threads=2) as runner:
        images, labels = next(iter(runner))
    assert (images.shape, labels.shape) == ((32, 3, 48, 48), (32,))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_each_block_defines_what_it_uses(page: Path) -> None:
    code = python(page)
    assert not {block.line: names for block in code if (names := undefined(block.code))}


def test_names_that_are_defined_nowhere_are_found() -> None:
    assert undefined("from os import path as p\ndef f(a):\n    return p(a, b, os)") == {"b", "os"}
    assert not undefined("import os.path\nfor n in [1]:\n    print(n, lambda x: x, os, __name__)")


def test_batches_come_from_a_service_of_tf_data(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    address = '"grpc://dispatcher:5050"'
    (code,) = (b.code for page in PAGES for b in python(page) if address in b.code)
    take = "with runner:\n    print(next(iter(runner)).shape)\n"
    (tmp_path / "train.py").write_text(SERVICE + code.replace(address, "dispatcher.target") + take)
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.stdout.split() == ["(64,)"], done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_of_python_is_named_so(page: Path) -> None:
    others = [block for block in blocks(page) if block.language != "python"]
    assert not [block.line for block in others if PYTHON.search(block.code)]
