"""`fastfeed.watch` writes into the diagnosis under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastfeed.diagnose.hooks.context import Context

MODULES = ("fastfeed.steps.watch",)


def install(module: Any, context: Context) -> Callable[[], None]:
    """Give `watch` the log of the diagnosis."""
    module.watch.log = context

    def uninstall() -> None:
        module.watch.log = None

    return uninstall
