"""The end of a script's process, where Python does not come to it by itself."""

from __future__ import annotations

import contextlib
import sys
from typing import Any


def rest_of_exit() -> None:
    """What was registered with atexit before us, by modules that we import and the script may
    use."""
    for module, name in (("multiprocessing.util", "_exit_function"), ("logging", "shutdown")):
        function: Any = getattr(sys.modules.get(module), name, None)
        if function is not None:
            with contextlib.suppress(Exception):
                function()


def ends_at_once() -> None:
    """Before a process ends that waits for ever: nobody else would end its daemonic children, which
    may wait, too."""
    flush()
    children: Any = getattr(sys.modules.get("multiprocessing"), "active_children", list)
    for child in children():
        if child.daemon:
            with contextlib.suppress(Exception):  # it has just ended
                child.terminate()


def flush() -> None:
    """What was written is seen."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # closed, or a pipe that nobody reads
            continue
