"""Hook of `fastfeed.watch`, which then records into the diagnosis that runs."""

from __future__ import annotations

from typing import Any

from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.patches import Undo, patch

MODULES = ("fastfeed.steps.watch",)


def install(module: Any, log: HookLog) -> Undo:
    """Let `watch` record into the log."""
    return patch(module.watch, "log", wrap=lambda original: log)
