"""stop() at any moment from start() on, from any thread: nothing is left, nothing is raised,
nothing hangs."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, FeedStopped, StateError, Worker
from tests.helpers.dying import LONG_S, MIXES


class Endless:
    """An indexable without an end."""

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: int) -> Any:
        return np.full(3, index)


def stream(worker: Worker) -> Iterator[Any]:
    for index in itertools.count():
        yield np.full((4, 100), index)


def runner_for(draw: random.Random) -> FeedRunner:
    processes, threads = draw.choice(MIXES)
    kind = draw.randrange(3)
    if kind == 0:
        return FeedRunner(stream, processes=processes, threads=threads)
    if kind == 1:
        return FeedRunner(
            Endless(), batch_size=8, processes=processes, threads=threads, on_worker_death="restart"
        )
    transform = np.float64([1.0]).repeat
    return FeedRunner(
        itertools.repeat(5), transform=transform, processes=processes, threads=threads
    )


def moment(draw: random.Random) -> float:
    """Return a moment, often an early one, when things are half built."""
    return draw.choice([0.0, draw.random() * 0.02, draw.random() * 0.3])


@pytest.mark.parametrize("seed", range(6))
def test_stop_at_a_random_moment(seed: int) -> None:
    draw = random.Random(seed)
    runner = runner_for(draw).start()
    if draw.random() < 0.5:
        next(iter(runner))
    threading.Event().wait(moment(draw))  # the moment is what is tested
    runner.stop()
    with pytest.raises(FeedStopped):
        iter(runner)


@pytest.mark.parametrize("seed", range(4))
def test_stop_from_another_thread_while_batches_are_taken(seed: int) -> None:
    draw = random.Random(seed)
    runner = runner_for(draw)
    stopper = threading.Timer(0.1 + moment(draw), runner.stop)
    stopper.start()
    with pytest.raises(FeedStopped):
        for _ in runner:
            pass
    stopper.join(LONG_S)
    assert not stopper.is_alive()


def test_many_threads_stop_at_once() -> None:
    runner = FeedRunner(stream, processes=2)
    next(iter(runner))
    threads = [threading.Thread(target=runner.stop) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert not any(t.is_alive() for t in threads)


def test_stop_before_start_and_after_it() -> None:
    runner = FeedRunner(stream, processes=1)
    runner.stop()
    with pytest.raises((FeedStopped, StateError)):
        runner.start()


def test_a_runner_that_was_made_and_never_used() -> None:
    FeedRunner(stream, processes=2)


def test_stop_inside_the_loop() -> None:
    with FeedRunner(stream, processes=2) as runner:
        found = 0
        with pytest.raises(FeedStopped):
            for batch in runner:
                found += len(batch)
                runner.stop()
    assert found == 4
