"""The blocks of Python in the pages run in their order, one page after the other, as a reader would
try them. tests/examples/test_recipes.py runs those of docs/recipes.md, on data made there."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from fastfeed import FeedOptions
from tests.helpers.pages import PAGES, ROOT, Block, blocks, name_of

RECIPES = ROOT / "docs" / "recipes.md"
REASONS = {"needs a cluster of Ray", "needs a service of tf.data"}
# each begins a line of a program and of nothing else that the pages show
PYTHON = re.compile(r"^(import|from|def|with|for) ", re.MULTILINE)


def python(page: Path, *, run: bool) -> list[Block]:
    """Return the blocks that run, or those that the page says do not."""
    return [b for b in blocks(page) if b.language == "python" and bool(b.not_run) != run]


def script_of(page: Path) -> str:
    """Return the blocks that run as one script, in which each line has its number in the page."""
    script = ""
    for block in python(page, run=True):
        script += "\n" * (block.line - script.count("\n")) + block.code
    return script


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


@pytest.mark.filterwarnings("ignore:.*missing from the checkpoint:UserWarning")
@pytest.mark.parametrize(
    "page", [p for p in PAGES if p != RECIPES and python(p, run=True)], ids=name_of
)
def test_the_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / f"{page.stem}.py"
    script.write_text(script_of(page))
    for module in sorted(modules(script.read_text())):
        pytest.importorskip(module)
    names: dict[str, Any] = {"__name__": f"page {page.stem}"}
    exec(compile(script.read_text(), script, "exec"), names)


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
