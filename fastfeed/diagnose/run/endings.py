"""The end of a script's process, where Python does not handle it by itself."""

from __future__ import annotations

import contextlib
import sys
from typing import Any


def rest_of_exit() -> None:
    """Run what was registered with atexit before the diagnosis, by modules that it imports and the
    script may use."""
    for module, name in (("multiprocessing.util", "_exit_function"), ("logging", "shutdown")):
        function: Any = getattr(sys.modules.get(module), name, None)
        if function is not None:
            with contextlib.suppress(Exception):
                function()


def ends_at_once() -> None:
    """End a process that waits for ever: otherwise its daemonic children, which may wait, too,
    would stay."""
    flush()
    children: Any = getattr(sys.modules.get("multiprocessing"), "active_children", list)
    for child in children():
        if child.daemon:
            with contextlib.suppress(Exception):  # it has just ended
                child.terminate()


def flush() -> None:
    """Flush the output."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # closed, or a pipe without a reader
            continue
