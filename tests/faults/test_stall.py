"""Stalls: the error shows what every worker is doing, down to the user's line, and where the slots
are."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, FeedTimeout
from tests.helpers.dying import LONG_S, state_of, until

STALL_S = 0.5
HERE = Path(__file__).name


def sleeps() -> None:
    time.sleep(LONG_S)  # where it sleeps


def holds_the_lock() -> None:
    ctypes.PyDLL(None).sleep(int(LONG_S))  # where it holds the lock


def waits_for_a_lock() -> None:
    import threading

    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # where it waits for ever


def computes() -> None:
    all(True for _ in itertools.repeat(None))  # where it computes


def after_one_batch(stuck: Callable[[], None]) -> Callable[[], Iterator[Any]]:
    def stream() -> Iterator[Any]:
        yield np.full(4, os.getpid())
        stuck()

    return stream


def begun(runner: FeedRunner, batches: int = 1) -> FeedRunner:
    """Start a runner and wait for its first batches: the limit counts from a request, without the
    start."""
    runner.start()
    until(lambda: runner.snapshot().produced.batches >= batches, "the first batches")
    return runner


def stall_of(runner: FeedRunner) -> str:
    with pytest.raises(FeedTimeout) as caught:
        list(runner)
    return str(caught.value)


@pytest.mark.parametrize("stuck", [sleeps, holds_the_lock, waits_for_a_lock, computes])
def test_the_users_own_line(stuck: Callable[[], None]) -> None:
    with begun(FeedRunner(after_one_batch(stuck), processes=1, stall_timeout_s=STALL_S)) as runner:
        text = stall_of(runner)
    assert HERE in text
    assert f"in {stuck.__name__}" in text
    assert "# where it" in text, "the line itself"
    assert "stall_timeout_s" in text


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "threads"), [(2, 1), (1, 3)])
def test_every_producer_is_shown(processes: int, threads: int) -> None:
    runner = FeedRunner(
        after_one_batch(sleeps), processes=processes, threads=threads, stall_timeout_s=STALL_S
    )
    with begun(runner, processes * threads):
        text = stall_of(runner)
    assert text.count("in sleeps") == processes * threads
    for worker in range(processes):
        assert f"worker process {worker} (pid " in text


def test_where_the_slots_are() -> None:
    with begun(FeedRunner(after_one_batch(sleeps), processes=1, stall_timeout_s=STALL_S)) as runner:
        stream = iter(runner)
        held = next(stream)
        with pytest.raises(FeedTimeout) as caught:
            next(stream)
        slots = runner.snapshot().slots
    line = str(caught.value).splitlines()[-1]
    assert line == str(slots)
    assert slots.lent == 1
    assert f"{slots.all} slots: " in line
    del held


def test_a_stopped_worker_says_so() -> None:
    """SIGSTOP from outside, or from a debugger."""
    with begun(FeedRunner(after_one_batch(sleeps), processes=1, stall_timeout_s=STALL_S)) as runner:
        stream = iter(runner)
        pid = int(next(stream)[0])
        os.kill(pid, signal.SIGSTOP)
        until(lambda: state_of(pid) == "T", "the worker to be stopped")
        with pytest.raises(FeedTimeout, match=rf"pid {pid}, stopped"):
            next(stream)


def test_workers_that_wait_for_a_source_that_is_read_in_the_trainer() -> None:
    """The workers are fine: the iterator yields nothing."""

    def slow() -> Iterator[int]:
        yield 1
        time.sleep(STALL_S + 1.2)  # where the iterator sleeps; stop() waits for its end

    with begun(
        FeedRunner(slow(), transform=lambda i: np.full(4, i), processes=1, stall_timeout_s=STALL_S)
    ) as runner:
        text = stall_of(runner)
    assert "where the iterator sleeps" in text


def test_a_worker_that_cannot_even_start(tmp_path: Path) -> None:
    """Its class takes for ever to unpickle."""

    class Slow:
        def __init__(self) -> None:
            self.reached = tmp_path / "reached"

        def __setstate__(self, state: Any) -> None:
            state["reached"].touch()
            time.sleep(LONG_S)  # where it is unpickled

        def __call__(self) -> Iterator[Any]:
            yield np.zeros(4)

    with FeedRunner(slow := Slow(), processes=1, stall_timeout_s=STALL_S).start() as runner:
        until(slow.reached.exists, "the worker")
        assert "where it is unpickled" in stall_of(runner)


def test_a_long_step_is_no_stall() -> None:
    """The limit counts from the request for a batch."""

    def numbers() -> Iterator[Any]:
        return (np.full(4, i) for i in range(400))

    with begun(FeedRunner(numbers, processes=1, stall_timeout_s=STALL_S)) as runner:
        stream = iter(runner)
        next(stream)
        time.sleep(2 * STALL_S)  # the step; the test is that nothing happens in it
        assert sum(1 for _ in stream) == 399


def test_after_a_stall_everything_ends() -> None:
    """The fixture proves it; later calls raise the same error."""
    with begun(
        FeedRunner(after_one_batch(holds_the_lock), processes=2, stall_timeout_s=STALL_S), 2
    ) as runner:
        texts = {stall_of(runner) for _ in range(3)}
    assert len(texts) == 1
