"""Sources that die or hang in a worker process, and helpers that watch processes: pids, states,
deadlines.

Workers import this module too, so it imports little. `ways` are the ways in which a process can end
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
from fastfeed.producers.process import forkserver

LONG_S = 60.0  # longer than any wait that succeeds
# limit of one check: if it takes longer, this process itself did not get the processor
TURN_S = 0.02
MIXES = [(1, 1), (2, 1), (2, 3)]


def by_signal(number: int) -> Callable[[], None]:
    """Send itself a signal; a stopped or ignored one would return."""
    return lambda: os.kill(os.getpid(), number)


def by_abort() -> None:
    """End inside native code."""
    ctypes.CDLL(None).abort()


def by_null_pointer() -> None:
    """Cause a real segmentation fault."""
    ctypes.string_at(0)


def until(condition: Callable[[], Any], what: str, limit_s: float = LONG_S) -> Any:
    """Return the value of `condition` as soon as it is true; fail with `what` after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {limit_s:g} s for {what}"
        time.sleep(0.002)
    return found


def worker_pid(runner: FeedRunner, number: int) -> int:
    """Return the pid of a worker process once it exists; before, it is 0, which as the target of a
    signal is the whole group of this process."""

    def pid() -> int:
        status = runner.status()
        return (status.workers[number].pid or 0) if status is not None else 0

    return int(until(pid, f"worker {number}"))


def kept(condition: Callable[[], Any], what: str, promise_s: float) -> None:
    """Wait until `condition` is true, within the promised time; time in which this process did not
    run does not count."""
    spent_s, before = 0.0, time.monotonic()
    while not condition():
        assert spent_s < promise_s, f"waited {promise_s:g} s for {what}"
        time.sleep(0.002)
        now = time.monotonic()
        spent_s += min(now - before, TURN_S)
        before = now


def state_of(pid: int) -> str:
    """Return the state letter of proc(5), or "" if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def gone(pid: int) -> bool:
    """Return True if the process has ended and no process of this tree still has to wait for it.
    Zombies of init do not count."""
    try:
        process = psutil.Process(pid)
        return process.status() == psutil.STATUS_ZOMBIE and process.ppid() == 1
    except psutil.NoSuchProcess:
        return True


def server() -> psutil.Process:
    """Return the fork server of the only runner."""
    return until(lambda: psutil.Process().children(), "the fork server")[0]


def workers(count: int) -> list[psutil.Process]:
    """Return the worker processes, once there are `count` of them."""
    return until(
        lambda: (found := server().children()) and len(found) >= count and found, f"{count} workers"
    )


def full(runner: FeedRunner) -> bool:
    """Return True if every producer waits for a slot: none is free, and only waiting producers fill
    one."""
    slots = runner.snapshot().slots
    return slots.ready > 0 and slots.free == 0


def numbered(total: int, size: int = 4) -> Callable[[Worker], Iterator[Any]]:
    """Return a callable that shares out batches of records (id, pid of the worker that produced
    it)."""

    def stream(worker: Worker) -> Iterator[Any]:
        for start in range(worker.index * size, total, worker.count * size):
            ids = np.arange(start, min(start + size, total))
            yield ids, np.full(len(ids), os.getpid())

    return stream


def endless() -> Iterator[Any]:
    """Yield batches that carry their producer's pid, without end."""
    while True:
        yield np.full(4, os.getpid())


class Deadly:
    """An indexable of `total` records; fetching the record `bad` calls `way`, as long as `armed`
    says so."""

    def __init__(self, total: int, bad: int, way: Callable[[], None]) -> None:
        self.total, self.bad, self.way = total, bad, way

    def __len__(self) -> int:
        return self.total

    def __getitem__(self, index: int) -> Any:
        if index == self.bad:
            self.way()
        return np.int64(index)


def once(flag: Path, way: Callable[[], None]) -> Callable[[], None]:
    """Return `way`, but effective only the first time in any process: a file remembers."""

    def only_once() -> None:
        try:
            os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        way()

    return only_once


SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV)


def serve(*given: Any, **named: Any) -> None:
    """Run a fork server whose second worker gets SIGTERM as soon as it exists."""
    forks: list[None] = []

    def terminate() -> None:
        if len(forks) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    os.register_at_fork(before=lambda: forks.append(None), after_in_child=terminate)
    forkserver.serve(*given, **named)
