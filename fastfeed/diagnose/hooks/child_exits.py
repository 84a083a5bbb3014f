"""Observe how the child processes of `multiprocessing` end, those of pools included."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from fastfeed.diagnose.hooks.hook_log import HookLog

MODULES = ("multiprocessing.popen_fork", "multiprocessing.popen_forkserver")


def install(module: Any, log: HookLog) -> Callable[[], None]:
    """Patch `poll`, through which every exit code comes."""
    kind = module.Popen
    original = kind.poll

    def poll(self: Any, *args: Any, **options: Any) -> Any:
        known = self.returncode is not None
        code = original(self, *args, **options)
        if code and not known and log.active:
            log.saw_death(f"process {self.pid} ended: {how(code)}")
        return code

    kind.poll = poll

    def uninstall() -> None:
        kind.poll = original

    return uninstall


def how(code: int) -> str:
    """Return an exit code in words; negative ones are signals."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
