"""Sources that die or hang in a worker process, and what a test needs to watch processes: pids,
states, deadlines.

Imported by workers too, so it needs little. `ways` are the ends that a process can come to by
itself.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fastfeed import FeedRunner, Worker

LONG_S = 60.0  # longer than any wait that is ended as it should be
TURN_S = 0.02  # what a look may take: longer, and this process itself was kept from the processor
MIXES = [(1, 1), (2, 1), (2, 3)]


def by_signal(number: int) -> Callable[[], None]:
    """Sends itself a signal; a stopped or ignored one would let it come back."""
    return lambda: os.kill(os.getpid(), number)


def by_abort() -> None:
    """Ends inside native code."""
    ctypes.CDLL(None).abort()


def by_null_pointer() -> None:
    """A real segmentation fault."""
    ctypes.string_at(0)


def until(condition: Callable[[], Any], what: str, limit_s: float = LONG_S) -> Any:
    """What `condition` gives as soon as it is true; fails with `what` after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {limit_s:g} s for {what}"
        time.sleep(0.002)
    return found


def kept(condition: Callable[[], Any], what: str, promise_s: float) -> None:
    """Waits until `condition` is true, which was promised; a machine that serves nobody is not held
    against it."""
    spent_s, before = 0.0, time.monotonic()
    while not condition():
        assert spent_s < promise_s, f"waited {promise_s:g} s for {what}"
        time.sleep(0.002)
        now = time.monotonic()
        spent_s += min(now - before, TURN_S)
        before = now


def state_of(pid: int) -> str:
    """The letter of proc(5), or "" where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def gone(pid: int) -> bool:
    """Whether the process has ended, and nobody in this tree owes it a wait. What init has not yet
    seen is init's."""
    try:
        process = psutil.Process(pid)
        return process.status() == psutil.STATUS_ZOMBIE and process.ppid() == 1
    except psutil.NoSuchProcess:
        return True


def server() -> psutil.Process:
    """The fork server of the only runner."""
    return until(lambda: psutil.Process().children(), "the fork server")[0]


def workers(count: int) -> list[psutil.Process]:
    """The worker processes, once there are `count` of them."""
    return until(
        lambda: (found := server().children()) and len(found) >= count and found, f"{count} workers"
    )


def full(runner: FeedRunner) -> bool:
    """Whether every producer waits for a slot: nothing is free and nothing is being written but by
    those that wait."""
    slots = runner.snapshot().slots
    return slots.ready > 0 and slots.free == 0


def numbered(total: int, size: int = 4) -> Callable[[Worker], Iterator[Any]]:
    """A callable that shares out batches of records (id, pid of the worker that made it)."""

    def stream(worker: Worker) -> Iterator[Any]:
        for start in range(worker.index * size, total, worker.count * size):
            ids = np.arange(start, min(start + size, total))
            yield ids, np.full(len(ids), os.getpid())

    return stream


def endless() -> Iterator[Any]:
    """Batches that carry their maker's pid, without end."""
    while True:
        yield np.full(4, os.getpid())


class Deadly:
    """An indexable of `total` records; making the record `bad` does `way`, as long as `armed` says
    so."""

    def __init__(self, total: int, bad: int, way: Callable[[], None]) -> None:
        self.total, self.bad, self.way = total, bad, way

    def __len__(self) -> int:
        return self.total

    def __getitem__(self, index: int) -> Any:
        if index == self.bad:
            self.way()
        return np.int64(index)


def once(flag: Path, way: Callable[[], None]) -> Callable[[], None]:
    """`way`, but only the first time in any process: a file remembers."""

    def only_once() -> None:
        try:
            os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        way()

    return only_once


SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV)
