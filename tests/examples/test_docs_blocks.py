"""Each block of Python in the pages is complete: it runs alone, as a reader would paste it.
tests/examples/test_recipes.py runs those of docs/recipes.md, on data made there."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import importlib
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fastfeed import FeedOptions, FeedRunner
from tests.helpers.pages import PAGES, ROOT, Block, blocks, name_of

RECIPES = ROOT / "docs" / "recipes.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"
REASONS = {"needs a cluster of Ray", "needs a service of tf.data"}
# each begins a line of a program and of nothing else that the pages show
PYTHON = re.compile(r"^(import|from|def|with|for) ", re.MULTILINE)
# the first line of a block that a page asks to save, and that its other blocks may import
SAVED = re.compile(r"# (\w+)\.py\n")
# two steps in place of a training of minutes
SHORTER = {TUTORIAL: {"return 6400": "return 32", "in range(20)": "in range(2)"}}


def python(page: Path, *, run: bool) -> list[Block]:
    """Return the blocks that run, or those that the page says do not."""
    return [b for b in blocks(page) if b.language == "python" and bool(b.not_run) != run]


def cases() -> list[Any]:
    """Return each block that runs, with its page; those that the tutorial saves have a test of
    their own."""
    return [
        pytest.param(page, block, id=f"{name_of(page)}:{block.line}")
        for page in PAGES
        for block in python(page, run=True)
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


def missing(code: str) -> list[str]:
    """Return the names that code takes from fastfeed, and the options of a FeedRunner, that do not
    exist."""
    options = {field.name for field in dataclasses.fields(FeedOptions)} | {"workers"}
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fastfeed"):
            module = importlib.import_module(str(node.module))
            found += [alias.name for alias in node.names if not hasattr(module, alias.name)]
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "FeedRunner":
            found += [k.arg for k in node.keywords if k.arg and k.arg not in options]
    return found


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
        for before in python(self.page, run=True):
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
    train, feed = (b for b in python(TUTORIAL, run=True) if SAVED.match(b.code))
    assert all(long in train.code for long in SHORTER[TUTORIAL])
    reader.run(train)
    assert re.fullmatch(r"0 \d\S+\n1 \d\S+\n", capsys.readouterr().out)
    with FeedRunner(reader.run(feed)["batches"], threads=2) as runner:
        images, labels = next(iter(runner))
    assert (images.shape, labels.shape) == ((32, 3, 48, 48), (32,))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_each_block_defines_what_it_uses(page: Path) -> None:
    code = [block for run in (True, False) for block in python(page, run=run)]
    assert not {block.line: names for block in code if (names := undefined(block.code))}


def test_names_that_are_defined_nowhere_are_found() -> None:
    assert undefined("from os import path as p\ndef f(a):\n    return p(a, b, os)") == {"b", "os"}
    assert not undefined("import os.path\nfor n in [1]:\n    print(n, lambda x: x, os, __name__)")


@pytest.mark.parametrize("page", [p for p in PAGES if python(p, run=False)], ids=name_of)
def test_what_does_not_run_gives_a_reason_and_names_what_exists(page: Path) -> None:
    for block in python(page, run=False):
        assert block.not_run in REASONS
        compile(block.code, page, "exec")
        assert not missing(block.code), f"{name_of(page)}:{block.line}"


def test_each_reason_has_a_block() -> None:
    assert {b.not_run for page in PAGES for b in python(page, run=False)} == REASONS


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_of_python_is_named_so(page: Path) -> None:
    others = [block for block in blocks(page) if block.language != "python"]
    assert not [block.line for block in others if PYTHON.search(block.code)]


def test_names_that_do_not_exist_are_found() -> None:
    assert missing("from fastfeed import FeedRunner, Shuffel") == ["Shuffel"]
    assert missing("FeedRunner(x, batch_size=2, workers='auto', worker=3)") == ["worker"]
