"""The status of each producer agrees with its activity."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner
from fastfeed.core import status
from fastfeed.live.runner_status import RunnerStatus, status_of
from fastfeed.live.watched import WatchedRunner
from tests.helpers.dying import until
from tests.live.places import ones


def status_with(runner: FeedRunner, *states: int) -> RunnerStatus:
    """Return the first status with all producers in these states."""

    def found() -> RunnerStatus | None:
        current = status_of(runner._stream, 0)
        agrees = current and current.rows and all(row.state in states for row in current.rows)
        return current if agrees else None

    reached: RunnerStatus = until(found, f"producers that are {[status.STATES[s] for s in states]}")
    return reached


@pytest.mark.parametrize("processes", [0, 1])
def test_they_wait_for_room(processes: int) -> None:
    with FeedRunner(ones, threads=2, processes=processes, memory=2**20) as runner:
        next(iter(runner))
        look = status_with(runner, status.ROOM)
        assert [row.kind for row in look.rows] == [processes] * 2
        assert look.snapshot.depth > 0 and look.state == status.FEED_RUNS


def test_they_make_batches_at_a_line_of_the_user() -> None:
    go_on, begun = threading.Event(), threading.Event()

    def slow(item: Any) -> Any:
        begun.set()
        go_on.wait()
        return item

    with FeedRunner([np.ones((4, 3))] * 9, records=False, transform=slow) as runner:
        runner.start()
        begun.wait()
        (row,) = status_with(runner, status.MAKING).rows
        assert row.where.startswith("slow test_live_runner_status.py:")
        assert (row.item, row.stream) == (0, -1)
        go_on.set()


def test_they_wait_for_one_another_to_read() -> None:
    go_on, begun = threading.Event(), threading.Event()

    def stream() -> Iterator[Any]:
        begun.set()
        go_on.wait()
        yield np.ones((4, 3))

    with FeedRunner(stream(), threads=3) as runner:
        runner.start()
        begun.wait()
        look = until(
            lambda: (
                (now := status_of(runner._stream, 0))
                and sorted(r.state for r in now.rows) == [status.MAKING, status.INPUT, status.INPUT]
                and now
            ),
            "one that reads and two that wait",
        )
        assert [r.where.split()[0] for r in look.rows if r.state == status.MAKING] == ["stream"]
        go_on.set()


def test_between_two_passes() -> None:
    with FeedRunner([np.ones((4, 3))] * 3, records=False, threads=2) as runner:
        assert len(list(runner)) == 3
        assert status_with(runner, status.IDLE).state == status.FEED_PAUSED


def test_the_end() -> None:
    with FeedRunner(iter([np.ones((4, 3))] * 3), threads=2) as runner:
        assert len(list(runner)) == 3
        assert status_with(runner, status.FINISHED).state == status.FEED_ENDED
    assert status_with(runner, status.FINISHED).state == status.FEED_STOPPED


def test_a_worker_waits_for_input() -> None:
    def late() -> Iterator[Any]:
        yield np.ones((4, 3))
        stopped.wait()

    stopped = threading.Event()
    with FeedRunner(late(), processes=1) as runner:
        next(iter(runner))
        (row,) = status_with(runner, status.INPUT).rows
        assert row.pid and row.rss > 2**20
        stopped.set()


def test_figures_of_the_last_seconds() -> None:
    with FeedRunner(ones) as runner:
        watched = WatchedRunner(runner._stream, 3, targets=())
        assert watched.update(keep=True) is None  # before the start
        stream = iter(runner)
        next(stream), next(stream)
        assert watched.update(keep=True) is not None
        before = time.perf_counter()
        for _ in range(50):
            next(stream)
        found = watched.update(keep=True)
        assert found is not None
        figures = watched.figures(found)
        recent = figures["recent"]
        assert figures["runner"] == 3 and figures["steps"] == 51
        assert recent["steps_per_second"] == pytest.approx(50 / recent["seconds"])
        assert 0 < recent["seconds"] < time.perf_counter() - before + 1
        assert 0 <= recent["starvation"] <= 1 and recent["bytes_per_second"] == pytest.approx(
            recent["steps_per_second"] * 48
        )


def test_a_status_keeps_no_runner_alive() -> None:
    """A reference cycle in the status would keep the runner alive."""
    import gc
    import weakref

    runner = FeedRunner(ones)
    stream = iter(runner)
    next(stream)
    gc.disable()
    try:
        assert status_of(runner._stream, 0) is not None
        gone = weakref.ref(runner._stream)
        del runner, stream
        assert gone() is None
    finally:
        gc.enable()
