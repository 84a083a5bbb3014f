"""Hook of the child processes of `multiprocessing`, those of pools included, for their ends."""

from __future__ import annotations

import functools
from typing import Any

from fastfeed.diagnose.evidence import DeadProducer
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.patches import Undo, patch
from fastfeed.probes.family import exit_text

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
