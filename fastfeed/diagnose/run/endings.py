"""Clean-up that Python does at exit, for processes that end another way."""

from __future__ import annotations

import contextlib
import sys
from typing import Any


def run_exit_handlers() -> None:
    """Run exit handlers that imported modules registered before those of this package."""
    for module, name in (("multiprocessing.util", "_exit_function"), ("logging", "shutdown")):
        function: Any = getattr(sys.modules.get(module), name, None)
        if function is not None:
            with contextlib.suppress(Exception):
                function()


def prepare_hard_exit() -> None:
    """Flush the output and terminate daemonic children, which a hard exit would leave behind."""
    flush_output()
    children: Any = getattr(sys.modules.get("multiprocessing"), "active_children", list)
    for child in children():
        if child.daemon:
            with contextlib.suppress(Exception):  # the child has just ended
                child.terminate()


def flush_output() -> None:
    """Flush the standard streams."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # closed, or a pipe without a reader
            continue
