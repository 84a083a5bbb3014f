"""Ends of a process that do not wait for its interpreter, and the clean-up that Python does at
exit."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import sys
import time
from typing import Any

SIGEV_THREAD = 2  # of signal.h: a timer calls a function in a thread of its own
NANOSECONDS = 10**9
END_FUNCTION = "_exit"  # of the C library: it runs no handlers


class _TimerEvent(ctypes.Structure):
    """`struct sigevent` of Linux, for a call of `function(value)`."""

    _fields_ = (
        ("value", ctypes.c_ssize_t),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("padding", ctypes.c_char * 32),
    )


def arm_exit(seconds: float, code: int) -> bool:
    """End the process with `code` after `seconds`, unless it ends before.

    It is the C library that does so: neither a lock of the interpreter nor its end matters. Return
    False if the library has no such timers.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "timer_create"):  # glibc before 2.34 has them in another library
        return False
    function = ctypes.cast(getattr(library, END_FUNCTION), ctypes.c_void_p).value
    event = _TimerEvent(value=code, notify=SIGEV_THREAD, function=function)
    timer = ctypes.c_void_p()
    if library.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
        return False
    whole, rest = divmod(int(seconds * NANOSECONDS), NANOSECONDS)
    times = (ctypes.c_long * 4)(0, 0, whole, rest)  # it does not repeat; when it ends
    return not library.timer_settime(timer, 0, times, None)


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
    """Flush the standard streams, and every open file."""
    files = [one for one in gc.get_objects() if type(one) in (io.TextIOWrapper, io.BufferedWriter)]
    for stream in (sys.stdout, sys.stderr, *files):
        try:
            stream.flush()
        except Exception:  # closed, or a pipe without a reader
            continue
