"""`fastfeed.watch` writes into the diagnosis under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastfeed.diagnose.hooks.hook_log import HookLog

MODULES = ("fastfeed.steps.watch",)


def install(module: Any, log: HookLog) -> Callable[[], None]:
    """Give `watch` the log of the diagnosis."""
    module.watch.log = log

    def uninstall() -> None:
        module.watch.log = None

    return uninstall
