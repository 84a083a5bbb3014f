"""Ends of processes that do not wait for an interpreter, and the clean-up that an exit needs."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import os
import signal
import sys
import time
from collections.abc import Iterable
from typing import Any

SIGEV_THREAD = 2  # of signal.h: a timer calls a function in a thread of its own


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
    function = ctypes.cast(library["_exit"], ctypes.c_void_p).value  # it runs no handlers
    event = _TimerEvent(value=code, notify=SIGEV_THREAD, function=function)
    timer = ctypes.c_void_p()
    if library.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
        return False
    # it does not repeat; when it ends, in seconds and nanoseconds
    times = (ctypes.c_long * 4)(0, 0, int(seconds), int(seconds % 1 * 1e9))
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


def end_processes(pids: Iterable[int], number: signal.Signals = signal.SIGTERM) -> None:
    """Send a signal to processes."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
