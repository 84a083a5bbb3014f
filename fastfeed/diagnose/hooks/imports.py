"""Installation of the hooks of a module right after the script has imported it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.patches import Undo, undo_all

Install = Callable[[Any, HookLog], Undo]
HOOKS = (
    "watched_loops",
    "feed_runner",
    "child_exits",
    "queues",
    "torch",
    "torch_modes",
    "session",
    "tfdata",
    "keras_fit",
)


class ImportHooks(MetaPathFinder):
    """Finder on `sys.meta_path` that installs the hooks of a module after its import.

    Modules that are imported already are hooked at once. An error of a hook is reported in the log,
    and the script goes on without the hook.
    """

    def __init__(self, log: HookLog, hooks: Sequence[str] = HOOKS) -> None:
        self._log = log
        self._wanted: dict[str, list[Install]] = {}
        self._undos: list[Undo] = []
        self._finding: set[str] = set()
        for name in hooks:
            self._add_all(f"{__package__}.{name}")

    def add(self, module: str, install: Install) -> None:
        """Call `install` once this module is imported."""
        self._wanted.setdefault(module, []).append(install)

    def start(self) -> None:
        """Hook the modules that are imported already, and watch further imports."""
        for name in list(self._wanted):
            if isinstance(sys.modules.get(name), ModuleType):
                self.hook(sys.modules[name])
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Watch no further imports."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def undo(self) -> None:
        """Remove all patches, in reverse order. No iterator may be in use."""
        self.stop()
        undo_all(self._undos)()

    def find_spec(self, name: str, *where: Any) -> ModuleSpec | None:
        """Return the spec of the other finders, with a loader that installs the hooks."""
        if name not in self._wanted or name in self._finding or not self._log.active:
            return None
        self._finding.add(name)
        try:
            found = (f.find_spec(name, *where) for f in list(sys.meta_path) if f is not self)
            spec = next((spec for spec in found if spec is not None), None)
        finally:
            self._finding.discard(name)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _HookLoader(spec.loader, self.hook)
        return spec

    def hook(self, module: ModuleType) -> None:
        """Install the hooks of a module."""
        for install in self._wanted.pop(module.__name__, []) if self._log.active else []:
            try:
                self._undos.append(install(module, self._log))
            except Exception as error:
                self._log.failed(f"{module.__name__} (another version than is known?)", error)

    def _add_all(self, name: str) -> None:
        try:
            hook: Any = importlib.import_module(name)
        except ModuleNotFoundError as error:
            self._log.failed(name, error)
            return
        for wanted in hook.MODULES:
            self.add(wanted, hook.install)


class _HookLoader(Loader):
    """Loader of one import, which gives the module its real loader and installs the hooks."""

    def __init__(self, loader: Any, hook: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._hook = hook

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._hook(sys.modules.get(module.__name__, module))
