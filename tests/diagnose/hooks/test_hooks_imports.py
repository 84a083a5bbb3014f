"""Hooks are called after the script's own imports, and break nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.imports import HOOKS, ImportHooks
from fastfeed.steps.timeline import Timeline

HOOK = """
MODULES = ("watched_library", "watched_library.part")
def install(module, log):
    if log.experiments == "fails":
        raise AttributeError("no such thing")
    module.patched = module.name
    return lambda: delattr(module, "patched")
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HookLog]:
    """A library, and a hook of it that lies where ours do."""
    (tmp_path / "watched_library").mkdir()
    (tmp_path / "watched_library" / "__init__.py").write_text("name = 'all'")
    (tmp_path / "watched_library" / "part.py").write_text("name = 'part'")
    monkeypatch.syspath_prepend(str(tmp_path))
    hook = type(sys)("fastfeed.diagnose.hooks.of_a_test")
    exec(HOOK, hook.__dict__)
    monkeypatch.setitem(sys.modules, hook.__name__, hook)
    yield HookLog(Timeline())
    for name in ("watched_library", "watched_library.part"):
        sys.modules.pop(name, None)


def test_after_the_import(log: HookLog) -> None:
    imports = ImportHooks(log, ("of_a_test",))
    imports.start()
    whole: Any = importlib.import_module("watched_library")
    assert whole.patched == "all"
    part: Any = importlib.import_module("watched_library.part")
    assert part.patched == "part"
    for module in (whole, part):
        assert module.__loader__ is module.__spec__.loader
        assert type(module.__loader__).__module__ == "_frozen_importlib_external"
    imports.undo()
    assert imports not in sys.meta_path
    assert not hasattr(part, "patched")
    assert not log.missing


def test_imported_already(log: HookLog) -> None:
    whole: Any = importlib.import_module("watched_library")
    imports = ImportHooks(log, ("of_a_test",))
    imports.start()
    assert whole.patched == "all"
    imports.undo()


def test_a_hook_that_fails(log: HookLog) -> None:
    log.experiments = "fails"  # type: ignore[assignment]
    imports = ImportHooks(log, ("of_a_test", "absent"))
    imports.start()
    importlib.import_module("watched_library")
    imports.undo()
    assert "absent" in log.missing[0]
    assert (
        "watched_library (another version than is known?): AttributeError: no such thing"
        in log.missing[1]
    )


def test_none_when_it_is_over(log: HookLog) -> None:
    imports = ImportHooks(log, ("of_a_test",))
    imports.start()
    log.active = False
    assert not hasattr(importlib.import_module("watched_library"), "patched")
    imports.undo()


def test_all_hooks_are_there() -> None:
    log = HookLog(Timeline())
    ImportHooks(log, HOOKS)
    assert not log.missing
