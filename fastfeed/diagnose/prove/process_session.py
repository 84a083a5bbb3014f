"""A command in a session of its own, of which nothing goes on after its end."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from fastfeed.probes.family import descendants
from fastfeed.probes.procfs import stat_of

SET_CHILD_SUBREAPER = 36  # linux/prctl.h
KILLED_WITHIN_S = 5.0  # of their SIGKILL, processes that do not hang in the kernel
KILLED_POLL_S = 0.01  # between two looks at processes that are ending


def run_session(command: Sequence[str], *, limit_s: float, **options: Any) -> int | None:
    """Run a command for `limit_s` at most; return its exit code, None if it was ended. `options`:
    those of subprocess.Popen. An interrupt ends it, too."""
    process: subprocess.Popen[bytes] | None = None
    others = _children()
    with _orphans_come_here():
        try:
            with _interrupts_wait():  # one within Popen would leave a process that nobody knows
                process = subprocess.Popen(command, start_new_session=True, **options)
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process is not None:
                _end(process, others=others)


@contextmanager
def ends_as_interrupted() -> Iterator[None]:
    """Treat SIGTERM as an interrupt, so that this process cleans up before it ends."""
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _orphans_come_here() -> Iterator[None]:
    """Be the parent of processes whose own has ended, where the kernel can; see prctl(2)."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "prctl"):
        yield
        return
    library.prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        library.prctl(SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _children() -> set[int]:
    return {one.pid for one in psutil.Process().children()}


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Let an interrupt that comes within the block be heard at its end."""
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: one for number, one in found.items() if callable(one)}
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[Any] = []
    for number in handlers:
        signal.signal(number, lambda *given: heard.append(given))
    try:
        yield
    finally:
        for number, one in handlers.items():
            signal.signal(number, one)
    if heard:
        handlers[heard[0][0]](*heard[0])


def _end(process: subprocess.Popen[bytes], *, others: set[int]) -> None:
    """End a process and all that it has started, and wait until they are gone. `others`: children
    of this process that were there before."""
    started = {one.pid for one in descendants(process.pid)}  # some have a session of their own
    end_s = time.monotonic() + KILLED_WITHIN_S
    process.kill()
    process.wait()
    while time.monotonic() < end_s:
        orphans = _children() - others
        for pid in orphans:
            started |= {pid, *(one.pid for one in descendants(pid))}
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        left = [pid for pid in psutil.pids() if pid in started or _session_of(pid) == process.pid]
        left = [pid for pid in left if stat_of(pid).state not in ("", "Z")]
        if not left and not orphans:
            return
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(KILLED_POLL_S)


def _session_of(pid: int) -> int:
    with suppress(ProcessLookupError, PermissionError):
        return os.getsid(pid)
    return 0
