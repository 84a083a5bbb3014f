"""FeedRunner in a plain loop: order, memory, and the end of threads."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, FeedStopped, FeedWarning, Shuffle, StateError
from tests.helpers.feeds import (
    LONG_S,
    Blocked,
    Readable,
    chunks,
    ids_of,
    shared_out,
)


def test_any_order_does_not_wait_for_a_straggler() -> None:
    straggler = threading.Event()

    def slow_first(number: int) -> np.ndarray:
        if number == 0:
            straggler.wait(LONG_S)
        return np.array([number])

    with FeedRunner(
        iter(range(5)), transform=slow_first, threads=2, order="any", stall_timeout_s=LONG_S
    ) as runner:
        batches = iter(runner)
        try:
            assert sorted(int(next(batches)[0]) for _ in range(4)) == [1, 2, 3, 4]
        finally:
            straggler.set()
        assert [int(b[0]) for b in batches] == [0]


@pytest.mark.parametrize("threads", [1, 2])
def test_order_is_kept_past_a_straggler(threads: int) -> None:
    others = threading.Semaphore(0)

    def slow_first(number: int) -> np.ndarray:
        if number == 0 and threads > 1:
            for _ in range(4):
                others.acquire()
        others.release()
        return np.array([number])

    runner = FeedRunner(iter(range(5)), transform=slow_first, threads=threads)
    assert [int(b[0]) for b in runner] == list(range(5))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("options", [{}, {"batch_size": 4}])
def test_arrays_are_not_copied(threads: int, options: dict[str, Any]) -> None:
    batches = list(chunks(20, 4))
    for source in (iter(batches), Readable(lambda: batches)):
        for want, have in zip(batches, FeedRunner(source, threads=threads, **options), strict=True):
            assert all(np.shares_memory(a, b) for a, b in zip(want, have, strict=True))


def test_batches_that_are_cut_are_views() -> None:
    array = np.arange(12)
    assert all(np.shares_memory(array, batch) for batch in FeedRunner(iter([array]), batch_size=4))


@pytest.mark.parametrize("shuffle", [True, Shuffle(10, 2)])
def test_plain_iteration_shuffles_the_records_of_any_source(shuffle: Any) -> None:
    got = ids_of(FeedRunner(shared_out(80, 4), shuffle=shuffle, batch_size=4, seed=1))
    assert got != list(range(80))
    assert sorted(got) == list(range(80))


@pytest.mark.parametrize("total", [1, 5, 80])
@pytest.mark.parametrize("count", [0, 1, 20])
@pytest.mark.filterwarnings("ignore:the state is .* the epoch:fastfeed.FeedWarning")
def test_an_iterator_that_is_shuffled_ends_and_goes_on(total: int, count: int) -> None:
    def runner() -> FeedRunner:
        return FeedRunner(chunks(total, 4), shuffle=Shuffle(20, 5), batch_size=4, seed=1)

    whole = ids_of(runner())
    assert sorted(whole) == list(range(total))
    first = runner()
    batches = list(islice(first, count))
    rest = runner().restore(first.state())
    first.stop()
    if len(ids_of(batches)) < total:
        assert ids_of([*batches, *rest]) == whole


@pytest.mark.slow
def test_a_loop_keeps_the_runner_that_nobody_else_holds() -> None:
    received = []
    for batch in FeedRunner(shared_out(40, 4), threads=2):
        gc.collect()
        received.append(batch)
    assert sorted(ids_of(received)) == list(range(40))


def test_a_forgotten_runner_ends_its_threads() -> None:
    with Blocked(chunks(400, 4)) as source:
        runner = FeedRunner(source)
        next(iter(runner))
        gone = weakref.ref(runner)
        del runner
        gc.collect()
        assert gone() is None
    # that its thread has ended is proved by the fixture of every test


def test_leaving_the_loop_early_and_the_with_ends_the_threads() -> None:
    with FeedRunner(shared_out(10**6, 1), threads=4) as runner:
        next(iter(runner))
        assert threading.active_count() > 4
    assert not [t for t in threading.enumerate() if t.name.startswith("fastfeed")]


def test_after_stop_nothing_goes_on() -> None:
    runner = FeedRunner(shared_out(10**6, 1))
    runner.stop()
    runner.stop()
    for use in (lambda: next(iter(runner)), runner.start, runner.get_inputs):
        with pytest.raises(FeedStopped, match="make a new"):
            use()


def test_stop_ends_a_loop_that_waits() -> None:
    with Blocked(chunks(4, 4)) as source, FeedRunner(source) as runner:
        batches = iter(runner)
        next(batches)

        def stop() -> None:
            source.reached.wait(LONG_S)
            source.let_go.set()
            runner.stop()

        stopper = threading.Thread(target=stop)
        stopper.start()
        with pytest.raises(FeedStopped):
            raise next(batches, FeedStopped("the source ended first"))
        stopper.join()


def test_a_producer_that_does_not_end_is_shown() -> None:
    with Blocked(chunks(4, 4)) as source:
        runner = FeedRunner(source)
        next(iter(runner))
        source.reached.wait(LONG_S)
        with pytest.warns(FeedWarning, match=r"did not end(.|\n)*let_go\.wait"):
            runner.stop()


def test_batches_are_made_ahead_within_the_memory() -> None:
    produced = threading.Semaphore(0)

    def stream() -> Iterator[np.ndarray]:
        for _ in range(50):
            produced.release()
            yield np.zeros(100, np.uint8)

    with FeedRunner(stream, memory=350) as runner:
        runner.start()
        for _ in range(4):
            assert produced.acquire(timeout=LONG_S)
        next(iter(runner))
        snapshot = runner.snapshot()
        assert snapshot.depth_nbytes <= 350
        assert len(list(runner)) == 49


@pytest.mark.parametrize("threads", [1, 3])
def test_a_batch_larger_than_the_memory_still_passes(threads: int) -> None:
    assert len(list(FeedRunner(chunks(100, 10), memory=1, threads=threads))) == 10


def test_start_is_for_once() -> None:
    with FeedRunner(shared_out(8, 4)) as runner:
        assert runner.start() is runner
        with pytest.raises(StateError, match="called twice"):
            runner.start()
        assert ids_of(runner) == list(range(8))
