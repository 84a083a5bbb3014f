"""The status of each producer agrees with its activity."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, Skip
from fastfeed.core import status
from fastfeed.jobs.runner_samples import Sighting, WatchedRunner
from tests.helpers.dying import until, worker_pid
from tests.jobs.flights import ones


def sighting_of(runner: FeedRunner) -> Sighting | None:
    return WatchedRunner(runner._stream, 0).look()


def status_with(runner: FeedRunner, state: int) -> Sighting:
    """Return the first sighting with all producers in this state."""

    def found() -> Sighting | None:
        current = sighting_of(runner)
        wanted = {status.STATES[state]}
        return current if current and {row.state for row in current.producers} == wanted else None

    reached: Sighting = until(found, f"producers that are {status.STATES[state]!r}")
    return reached


@pytest.mark.parametrize("processes", [0, 1])
def test_they_wait_for_room(processes: int) -> None:
    with FeedRunner(ones, threads=2, processes=processes, memory=2**20) as runner:
        next(iter(runner))
        look = status_with(runner, status.ROOM)
        kind = "worker" if processes else "thread"
        assert [row.place.split()[0] for row in look.producers] == [kind] * 2
        assert look.sample.depth > 0 and look.sample.state == "runs" and look.sample.blocked == 2


def test_they_make_batches_at_a_line_of_the_user() -> None:
    go_on, begun = threading.Event(), threading.Event()

    def slow(item: Any) -> Any:
        begun.set()
        go_on.wait()
        return item

    with FeedRunner([np.ones((4, 3))] * 9, records=False, transform=slow) as runner:
        runner.start()
        begun.wait()
        (row,) = status_with(runner, status.MAKING).producers
        assert row.where.startswith("slow test_runner_samples.py:")
        assert row.hand == "item 0"
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
                (now := sighting_of(runner))
                and sorted(r.state for r in now.producers) == ["making", *["waits for input"] * 2]
                and now
            ),
            "one that reads and two that wait",
        )
        assert [r.where.split()[0] for r in look.producers if r.state == "making"] == ["stream"]
        go_on.set()


def test_between_two_passes() -> None:
    with FeedRunner([np.ones((4, 3))] * 3, records=False, threads=2) as runner:
        assert len(list(runner)) == 3
        assert status_with(runner, status.IDLE).sample.state == "waits for the next pass"


def test_the_end() -> None:
    with FeedRunner(iter([np.ones((4, 3))] * 3), threads=2) as runner:
        assert len(list(runner)) == 3
        assert status_with(runner, status.FINISHED).sample.state == "has ended"
    assert status_with(runner, status.FINISHED).sample.state == "was stopped"


def test_a_worker_waits_for_input() -> None:
    def late() -> Iterator[Any]:
        yield np.ones((4, 3))
        stopped.wait()

    stopped = threading.Event()
    with FeedRunner(late(), processes=1) as runner:
        next(iter(runner))
        (row,) = status_with(runner, status.INPUT).producers
        assert row.pid and row.rss > 2**20
        stopped.set()


def test_figures_of_the_last_seconds() -> None:
    with FeedRunner(ones) as runner:
        watched = WatchedRunner(runner._stream, 3)
        assert watched.look() is None  # before the start
        stream = iter(runner)
        next(stream), next(stream)
        assert watched.look() is not None
        before = time.perf_counter()
        for _ in range(50):
            next(stream)
        found = watched.look()
        assert found is not None
        now = found.sample
        assert now.runner == 3 and now.batches == 51
        assert now.steps_per_second is not None and now.starvation is not None
        assert 50 / now.steps_per_second < time.perf_counter() - before + 1
        assert 0 <= now.starvation <= 1
        assert now.bytes_per_second == pytest.approx(now.steps_per_second * 48)
        assert found.producers[0].batches >= 51 and watched.last is found


def test_options_are_told_without_calling_a_repr() -> None:
    class Loud:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, i: int) -> Any:
            return np.ones(3)

        def __call__(self, batch: Any) -> Any:
            return batch

        def __repr__(self) -> str:
            raise AssertionError

    options = {"batch_size": 2, "shard": (0, 2), "on_error": Skip(limit=3), "transform": Loud()}
    with FeedRunner(Loud(), **options) as runner:
        told = WatchedRunner(runner._stream, 0).options
    for words in ("batch_size=2", "shard=Shard(rank=0, world=2)", "Skip(limit=3)", "transform="):
        assert words in told


def test_the_stages_are_those_of_the_producer_also_after_a_restart() -> None:
    def record(index: int) -> Any:
        return np.full(3, index)

    options: dict[str, Any] = {"processes": 2, "on_worker_death": "restart", "epochs": 10**6}
    with FeedRunner(range(64), batch_size=4, transform=record, **options) as runner:
        batches, watched = iter(runner), WatchedRunner(runner._stream, 0)
        next(batches)
        first = {worker_pid(runner, number) for number in range(2)}
        os.kill(worker_pid(runner, 0), signal.SIGKILL)

        def restarted() -> Sighting | None:
            next(batches)
            look = watched.look()
            pids = {row.pid for row in look.producers} if look else set()
            known = look is not None and all(row.stages for row in look.producers)
            return look if known and len(pids - first) == 1 else None

        look: Sighting = until(restarted, "a new worker that has made batches")
        assert [(row.place, row.producer) for row in look.producers] == [
            ("worker 1", 1),
            ("worker 0", 0),
        ]
        for row in look.producers:
            assert row.busy == pytest.approx(min(1.0, sum(row.stages.values())))
        waits = look.sample.waits
        assert sum(waits.values()) == pytest.approx(look.sample.starvation or 0.0)
