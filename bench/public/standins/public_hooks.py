"""Changes to frameworks after their import: local data always, the tally and a variant's switches
only in a run for the truth."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import json
import sys
import types
from collections.abc import Callable
from typing import Any

SETTINGS: dict[str, Any] = {}


def install(path: str) -> None:
    """Read the settings and prepare the changes of modules that will be imported."""
    with open(path) as file:
        SETTINGS.update(json.load(file))
    changes: dict[str, list[Callable[[Any], None]]] = {}
    for name in ("keras.src.utils.file_utils", "tf_keras.src.utils.data_utils"):
        changes.setdefault(name, []).append(_local_files)
    changes["tensorflow"] = [_input_data]
    if SETTINGS.get("out"):
        import public_switches

        for name, change in public_switches.changes(SETTINGS):
            changes.setdefault(name, []).append(change)
    sys.meta_path.insert(0, _AfterImport(changes))


def _local_files(module: Any) -> None:
    """Let Keras find the files of its data sets here, whose hashes are not those of the real."""
    import made

    def get_file(fname: Any = None, origin: Any = None, **_: Any) -> str:
        return made.keras_file(str(fname or origin), SETTINGS)

    module.get_file = get_file


def _input_data(module: Any) -> None:
    """Provide `tensorflow.examples.tutorials.mnist`, which newer TensorFlow lacks."""
    import input_data

    for name in ("examples", "examples.tutorials", "examples.tutorials.mnist"):
        sys.modules.setdefault(f"tensorflow.{name}", types.ModuleType(f"tensorflow.{name}"))
    sys.modules["tensorflow.examples.tutorials.mnist.input_data"] = input_data
    sys.modules["tensorflow.examples.tutorials.mnist"].input_data = input_data  # type: ignore
    for name in ("contrib", "contrib.rnn", "contrib.layers", "contrib.learn"):
        sys.modules.setdefault(f"tensorflow.{name}", importlib.import_module("contrib_parts"))
    module.compat.v1.contrib = sys.modules["tensorflow.contrib"]


class _AfterImport(importlib.abc.MetaPathFinder):
    """Runs functions with a module right after its code was executed."""

    def __init__(self, changes: dict[str, list[Callable[[Any], None]]]) -> None:
        self._changes = changes
        self._finding: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._changes or name in self._finding:
            return None
        self._finding.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._finding.discard(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            for change in self._changes.pop(name, ()):
                change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
