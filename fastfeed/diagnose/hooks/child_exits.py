"""Hook of the child processes of `multiprocessing`, those of pools included, for their ends."""

from __future__ import annotations

import functools
import signal
from typing import Any

from fastfeed.diagnose.evidence import DeadProducer
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.patches import Undo, patch

MODULES = ("multiprocessing.popen_fork", "multiprocessing.popen_forkserver")


def install(module: Any, log: HookLog) -> Undo:
    """Patch `poll`, through which every exit code comes."""
    return patch(module.Popen, "poll", wrap=lambda original: _wrap_poll(original, log))


def _wrap_poll(original: Any, log: HookLog) -> Any:
    @functools.wraps(original)
    def poll(self: Any, *args: Any, **options: Any) -> Any:
        known = self.returncode is not None
        code = original(self, *args, **options)
        if code and not known and log.active:
            log.saw_death(dead_process(self.pid, code))
        return code

    return poll


def dead_process(pid: int, exit_code: int) -> DeadProducer:
    """Return the record of a process that has ended with an error."""
    name = f"process {pid}"
    return DeadProducer(name, f"{name} ended: {exit_text(exit_code)}", exit_code)


def exit_text(code: int) -> str:
    """Return an exit code in words; a negative one is a signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
