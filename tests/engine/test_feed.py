"""Failures of a producer as a plain loop sees them, and the counters."""

from __future__ import annotations

import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fastfeed import (
    FeedError,
    FeedRunner,
    FeedStopped,
    FeedTimeout,
    ProducerError,
    Shuffle,
    Snapshot,
)
from fastfeed.core.stats import StageRow, copy, total
from fastfeed.engine import feed as feed_module
from fastfeed.producers.reorder import BoundedBuffer
from tests.helpers.feeds import (
    LONG_S,
    Blocked,
    Broken,
    Readable,
    broken_after,
    chunks,
    ids_of,
    shared_out,
)


def until_it_fails(runner: FeedRunner) -> tuple[list[Any], FeedError]:
    """The batches before the failure, and the failure."""
    batches = []
    with pytest.raises(FeedError) as caught:
        batches.extend(runner)  # keeps what came before an error
    return batches, caught.value


def raise_at(number: int) -> Callable[[int], np.ndarray]:
    def transform(item: int) -> np.ndarray:
        if item == number:
            raise Broken("the disk is gone")
        return np.array([item])

    return transform


class BrokenRows:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return 10 // (index - 5)


def fails_to_open() -> Iterator[Any]:
    raise Broken("the disk is gone")


@pytest.mark.parametrize("threads", [1, 3])
def test_all_batches_before_a_failing_one_are_delivered_in_order(threads: int) -> None:
    with FeedRunner(iter(range(20)), transform=raise_at(7), threads=threads) as runner:
        batches, error = until_it_fails(runner)
    assert [int(b[0]) for b in batches] == list(range(7))
    assert isinstance(error, ProducerError)
    assert isinstance(error.__cause__, Broken)
    assert "batch 7 raised Broken: the disk is gone" in str(error)
    assert "in transform\n" in str(error), "the original traceback is part of the text"
    assert traceback.extract_tb(error.__cause__.__traceback__)[-1].name == "transform"


@pytest.mark.parametrize(
    ("source", "options", "place", "before"),
    [
        (broken_after(3), {}, "batch 3 of producer 0", 3),
        (broken_after(0), {}, "batch 0 of producer 0", 0),
        (fails_to_open, {}, "batch 0 of producer 0", 0),
        (broken_after(3)(), {}, "batch 3", 3),
        (Readable(broken_after(3)), {"threads": 2}, "batch 3", 3),
        (Readable(fails_to_open), {}, "batch 0", 0),
        (BrokenRows(), {"batch_size": 2}, "record 5 of batch 2", 2),
        (BrokenRows(), {"batch_size": 2, "threads": 3}, "record 5 of batch 2", 2),
    ],
)
def test_the_place_is_named(source: Any, options: dict[str, Any], place: str, before: int) -> None:
    with FeedRunner(source, **options) as runner:
        batches, error = until_it_fails(runner)
    assert len(batches) == before
    assert str(error).startswith(f"{place} raised "), str(error)


@pytest.mark.parametrize(
    "kind", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, MemoryError]
)
def test_whatever_ends_a_producer_reaches_the_consumer(kind: type[BaseException]) -> None:
    def transform(item: int) -> Any:
        raise kind("from the producer")

    for options in ({"transform": transform}, {"transform": transform, "threads": 2}):
        with FeedRunner(iter(range(3)), **options) as runner:
            batches, error = until_it_fails(runner)
        assert batches == []
        assert type(error.__cause__) is kind


def test_a_failure_is_met_again_by_every_later_loop() -> None:
    with FeedRunner(broken_after(1)) as runner:
        batches, first = until_it_fails(runner)
        assert len(batches) == 1
        assert until_it_fails(runner) == ([], first)


def test_an_empty_source_says_so_each_time() -> None:
    runner = FeedRunner(lambda: iter([]))
    for _ in range(2):
        batches, error = until_it_fails(runner)
        assert batches == []
        assert "ended before its first batch" in str(error)


def test_a_failure_ends_the_other_producers() -> None:
    """One fails, one waits in user code, one waits for room: the consumer gets the failure."""
    with Blocked() as blocked:

        def stream(worker: Any) -> Iterator[Any]:
            if worker.index == 0:
                blocked.reached.wait()
                yield from broken_after(0)()
            yield from blocked() if worker.index == 1 else chunks(10**6, 1)

        with FeedRunner(stream, threads=3) as runner:
            _, error = until_it_fails(runner)
            blocked.let_go.set()
    assert isinstance(error, ProducerError)


def test_a_stall_shows_what_every_producer_does() -> None:
    with Blocked(chunks(4, 4)) as source, FeedRunner(source, stall_timeout_s=0.1).start() as runner:
        assert source.reached.wait(LONG_S)
        batches, error = until_it_fails(runner)
        assert isinstance(error, FeedTimeout)
        assert len(batches) == 1
        assert "stall_timeout_s" in str(error)
        assert "self.let_go.wait" in str(error)
        assert until_it_fails(runner) == ([], error)
        source.let_go.set()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shared", [True, False])
def test_batches_of_zero_records_are_skipped_and_counted(threads: int, shared: bool) -> None:
    sizes = [0, 3, 0, 0, 3, 0, 3, 0]
    made = [(np.arange(n), -np.arange(n)) for n in sizes]

    def stream(worker: Any) -> Iterator[Any]:
        return iter(made[worker.index :: worker.count])

    for options, lengths in (
        ({}, [3, 3, 3]),
        ({"batch_size": 4}, [4, 4, 1]),
        ({"batch_size": 9}, [9]),
    ):
        runner = FeedRunner(iter(made) if shared else stream, threads=threads, **options)
        assert [len(ids) for ids, _ in runner] == lengths
        assert runner.snapshot().produced.skipped == 5


def test_empty_batches_hide_no_change_of_size() -> None:
    made = [np.arange(n) for n in (3, 2, 0, 4)]
    with pytest.raises(FeedError, match="leading dimension changed midway"):
        list(FeedRunner(iter(made)))


@pytest.mark.parametrize("threads", [1, 3])
def test_the_counters_agree_with_what_was_delivered(threads: int) -> None:
    runner = FeedRunner(shared_out(40, 4), threads=threads, epochs=2)
    assert len(ids_of(runner)) == 80
    now = runner.snapshot()
    assert (now.produced.batches, now.produced.records, now.produced.nbytes) == (20, 80, 80 * 16)
    assert now.produced == total(now.producers)
    assert len(now.producers) == threads
    # the first batch ends the warm-up and is not counted
    assert (now.consumed.batches, now.consumed.records, now.consumed.nbytes) == (19, 76, 76 * 16)
    assert (now.depth, now.depth_nbytes) == (0, 0)
    assert runner.snapshot().elapsed_s == now.elapsed_s, (
        "the clock stands still after the last batch"
    )


def test_a_snapshot_before_the_start_is_zero() -> None:
    now = FeedRunner(shared_out(8, 4)).snapshot()
    assert (now.elapsed_s, now.consumed.batches) == (0, 0)


def test_before_the_second_batch_there_is_no_starvation() -> None:
    with Blocked(chunks(4, 4)) as source, FeedRunner(source) as runner:
        runner.start()
        assert np.isnan(runner.snapshot().starvation)
        next(iter(runner))
        source.let_go.set()
    assert runner.snapshot().consumed.batches == 0


class Clock:
    """Time that passes only where a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, waits_s: list[float]) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(feed_module, "time", SimpleNamespace(perf_counter=lambda: self.now_s))
        take = BoundedBuffer.take

        def timed_take(handoff: BoundedBuffer, timeout_s: float) -> Any:
            self.now_s += waits_s.pop(0) if waits_s else 0
            return take(handoff, timeout_s)

        monkeypatch.setattr(BoundedBuffer, "take", timed_take)


def test_starvation_is_the_waiting_between_the_first_batch_and_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch, [50, 1, 2, 3, 4])  # 50 s of warm-up do not count
    snapshots = []
    with FeedRunner(shared_out(20, 4)) as runner:
        for _ in runner:
            snapshots.append(runner.snapshot())
            clock.now_s += 10  # the step
    end = runner.snapshot()
    assert [s.consumed.wait_in_s for s in snapshots] == [0, 1, 3, 6, 10]
    assert [s.elapsed_s for s in snapshots] == [0, 11, 23, 36, 50]
    assert end.starvation == pytest.approx(10 / 50)
    assert end.batches_per_second == pytest.approx(4 / 50)
    window = snapshots[4] - snapshots[2]
    assert window.starvation == pytest.approx(7 / 27)
    assert window.batches_per_second == pytest.approx(2 / 27)
    assert window.consumed.records == 8


def snapshot(seconds: float, row: StageRow, depth: int = 0) -> Snapshot:
    return Snapshot(seconds, row, row, depth, depth * 8, (row, row))


def test_snapshots_subtract() -> None:
    earlier = snapshot(1.0, StageRow(1, 2, 3, 0, 0.25, 0.5, 0.0, read_s=0.5), depth=5)
    now = snapshot(3.0, StageRow(4, 8, 9, 1, 0.5, 1.5, 0.5, read_s=2.0), depth=2)
    window, row = now - earlier, StageRow(3, 6, 6, 1, 0.25, 1.0, 0.5, read_s=1.5)
    assert window == Snapshot(2.0, row, row, 2, 16, (row, row))
    assert window.starvation == 0.5
    assert np.isnan((now - now).starvation)
    assert snapshot(1.0, StageRow(wait_in_s=1.5)).starvation == 1.0, "never more than all of it"


def test_rows_are_copied_and_added() -> None:
    row = StageRow(1, 2, 3, 4, 5.0, 6.0, 7.0, 8.0)
    kept = copy(row)
    row.batches += 1
    assert kept.batches == 1
    assert total([row, kept]) == StageRow(3, 4, 6, 8, 10.0, 12.0, 14.0, 16.0)
    assert total([]) == StageRow()


def test_busy_time_is_accounted_to_the_producer_that_spent_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fastfeed.core import stage_clock
    from fastfeed.producers import loop

    clock = threading.local()
    told = SimpleNamespace(
        perf_counter=lambda: getattr(clock, "wall_s", 0.0),
        thread_time=lambda: getattr(clock, "cpu_s", 0.0),
    )
    monkeypatch.setattr(loop, "time", told)
    monkeypatch.setattr(stage_clock, "time", told)

    def busy(item: int) -> np.ndarray:
        clock.wall_s = getattr(clock, "wall_s", 0.0) + 3
        clock.cpu_s = getattr(clock, "cpu_s", 0.0) + 2
        return np.array([item])

    runner = FeedRunner(iter(range(6)), transform=busy, threads=2)
    assert len(list(runner)) == 6
    now = runner.snapshot()
    assert (now.produced.busy_s, now.produced.cpu_s) == (18, 12)
    assert all(
        (row.busy_s, row.cpu_s) == (3 * row.batches, 2 * row.batches) for row in now.producers
    )


def taken(runner: FeedRunner) -> None:
    """Take batches until the runner is stopped."""
    with suppress(FeedStopped):
        deque(runner, maxlen=0)


@pytest.mark.filterwarnings("ignore:the state is")
@pytest.mark.parametrize("shuffle", [False, Shuffle(24, 8)])
def test_a_state_is_whole_also_while_another_thread_takes(shuffle: Any) -> None:
    """As a checkpoint beside `dataset()`, which takes batches in a thread of TensorFlow."""
    options = {"batch_size": 6, "shuffle": shuffle, "seed": 3}
    rows = [[(n, m) for m in range(4)] for n in range(2000)]

    def source() -> Iterator[Any]:
        yield from (np.array(item) for item in rows)

    with FeedRunner(source, records=False, **options) as runner:
        whole = [batch.tolist() for batch in runner]
    states: list[Any] = []
    before = sys.getswitchinterval()
    with FeedRunner(source, records=False, **options) as runner:
        loop = threading.Thread(target=taken, args=(runner,))
        sys.setswitchinterval(1e-6)
        try:
            loop.start()
            while loop.is_alive() and len(states) < 200:
                states.append(runner.state())
        finally:
            sys.setswitchinterval(before)
            runner.stop()
            loop.join()
    assert len(states) > 8
    for state in states[:: len(states) // 16 + 1]:
        with FeedRunner(source, records=False, **options).restore(state) as runner:
            rest = [batch.tolist() for batch in runner]
        assert rest == (whole[state["batches"] :] or whole)
