"""Buffer between producers and consumer against a list: order, bounds, epochs, failures, no
deadlock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from fastfeed.core.batch import Batch
from fastfeed.core.stats import StageRow
from fastfeed.producers.reorder import (
    END_OF_EPOCH,
    BoundedBuffer,
    ProducedBatch,
    Timeout,
)
from fastfeed.source.stream_comparison import FIRST
from tests.helpers.dying import until

LONG_S = 60.0


def made(number: int, nbytes: int = 1) -> ProducedBatch:
    return ProducedBatch(Batch((np.array([number]),), 1, nbytes), 0, f"batch {number}")


def number(item: ProducedBatch | None) -> int | str | None:
    """Return what was taken: a number, the end of an epoch, or the end."""
    if item is None:
        return None
    return int(item.batch.leaves[0][0]) if item.batch else "epoch"


def handoff(
    producers: int = 1,
    *,
    ordered: bool = True,
    batches: int = 4,
    nbytes: int = 10**6,
    window: int = 0,
) -> BoundedBuffer:
    bounds = {"max_batches": batches, "max_nbytes": nbytes}
    return BoundedBuffer(producers, ordered=ordered, window=window, **bounds)


def take_all(buffer: BoundedBuffer) -> list[Any]:
    taken = []
    while (item := buffer.take(LONG_S)) is not None:
        taken.append(number(item))
    return taken


def together(functions: list[Callable[[], Any]]) -> list[Any]:
    """Run the functions at the same time. Return their results."""
    results: list[Any] = [None] * len(functions)
    start = threading.Barrier(len(functions))

    def run(index: int) -> None:
        start.wait()
        results[index] = functions[index]()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_a_stream_that_is_held_back_waits_after_a_few_batches() -> None:
    suspects = {1}
    buffer = BoundedBuffer(2, ordered=False, max_batches=1, max_nbytes=10**6, suspects=suspects)

    def put(count: int, stream: int) -> None:
        assert buffer.put(made(count)._replace(stream=stream), 0, row=StageRow())

    for count in range(FIRST):
        put(count, 1)
    thread = threading.Thread(target=put, args=(FIRST, 1))
    thread.start()
    until(lambda: buffer._blocked, "the next batch to wait for room")
    put(10, 0)
    assert buffer.ready and number(buffer.take(LONG_S)) == 10
    with buffer.changing():
        suspects.clear()
        buffer.release()
    assert [number(buffer.take(LONG_S)) for _ in range(FIRST + 1)] == [*range(FIRST + 1)]
    thread.join()


class ByEpoch(RuleBasedStateMachine):
    """Streams without tickets: nothing of an epoch leaves before every producer has ended the
    previous one."""

    @initialize(producers=st.integers(1, 3))
    def begin(self, producers: int) -> None:
        self.buffer = handoff(producers, ordered=False, batches=1000)
        self.epoch = [0] * producers
        self.model: dict[int, list[Any]] = {}
        self.out: list[Any] = []
        self.turn = 0
        self.count = 0

    def _settle(self) -> None:
        self.out += self.model.pop(self.turn, [])
        while min(self.epoch) > self.turn:
            self.turn += 1
            self.out += ["epoch", *self.model.pop(self.turn, [])]

    @rule(data=st.data())
    def put(self, data: st.DataObject) -> None:
        epoch = data.draw(st.sampled_from(self.epoch))
        assert self.buffer.put(made(self.count), epoch, row=StageRow())
        self.model.setdefault(epoch, []).append(self.count)
        self.count += 1
        self._settle()

    @rule(data=st.data())
    def end_epoch(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.epoch) - 1))
        self.buffer.end_epoch(self.epoch[index])
        self.epoch[index] += 1
        self._settle()

    @rule()
    def take(self) -> None:
        if self.out:
            assert number(self.buffer.take(LONG_S)) == self.out.pop(0)
        else:
            with pytest.raises(Timeout):
                self.buffer.take(0)


TestByEpoch = ByEpoch.TestCase
TestByEpoch.settings = settings(max_examples=60, stateful_step_count=30)

bounds = st.tuples(st.integers(1, 4), st.integers(1, 12))


@settings(max_examples=60)
@given(
    st.tuples(st.integers(1, 4), st.sampled_from([0, 0, 1, 5])),
    st.lists(st.integers(1, 9), max_size=30),
    bounds,
    st.data(),
)
def test_in_order_or_its_window_and_never_a_dead_end(
    made_by: tuple[int, int], nbytes: list[int], bound: tuple[int, int], data: st.DataObject
) -> None:
    """All batches arrive in order, for any distribution of tickets and any bounds, or at most
    `window` batches late."""
    (producers, window), (batches, limit) = made_by, bound
    buffer = handoff(producers, batches=batches, nbytes=limit, window=window)
    owner = data.draw(
        st.lists(st.integers(0, producers - 1), min_size=len(nbytes), max_size=len(nbytes))
    )

    def produce(index: int) -> None:
        for ticket, size in enumerate(nbytes):
            if owner[ticket] == index:
                assert buffer.put(made(ticket, size), ticket, row=StageRow())
        with buffer.changing():
            buffer.end()

    *_, taken = together(
        [*(lambda i=i: produce(i) for i in range(producers)), lambda: take_all(buffer)]
    )
    assert sorted(taken) == list(range(len(nbytes)))
    assert all(abs(place - ticket) <= window for place, ticket in enumerate(taken))
    assert (buffer.depth, buffer.depth_nbytes) == (0, 0)


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), min_size=1, max_size=4), bounds
)
def test_epochs_stay_apart_however_full_it_is(
    counts: list[list[int]], bound: tuple[int, int]
) -> None:
    """`counts[producer][epoch]` batches each; producers run ahead as far as the bounds allow."""
    epochs = min(map(len, counts))
    buffer = handoff(len(counts), ordered=False, batches=bound[0], nbytes=bound[1])

    def produce(index: int) -> None:
        for epoch in range(epochs):
            for _ in range(counts[index][epoch]):
                assert buffer.put(made(epoch, 3), epoch, row=StageRow())
            with buffer.changing():
                buffer.end_epoch(epoch)
        with buffer.changing():
            buffer.end()

    *_, taken = together(
        [*(lambda i=i: produce(i) for i in range(len(counts))), lambda: take_all(buffer)]
    )
    want: list[Any] = []
    for epoch in range(epochs):
        want += [epoch] * sum(c[epoch] for c in counts) + ["epoch"]
    assert taken == want


class Room(threading.Condition):
    """The condition that a full buffer waits on; it reports a wait."""

    def __init__(self, lock: Any) -> None:
        super().__init__(lock)
        self.waited_for = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.waited_for.set()
        return super().wait(timeout)


def put_late(
    buffer: BoundedBuffer, late: int, key: int
) -> tuple[threading.Thread, list[bool], StageRow]:
    """Start a producer and return when it waits for room."""
    room, entered, row = Room(buffer._lock), [], StageRow()
    buffer._room = room
    thread = threading.Thread(
        target=lambda: entered.append(buffer.put(made(late, 10), key, row=row))
    )
    thread.start()
    assert room.waited_for.wait(LONG_S)
    return thread, entered, row


@pytest.mark.parametrize(("batches", "nbytes", "fit"), [(1, 35, 3), (100, 35, 3), (1, 1, 1)])
def test_what_came_early_is_bound_in_bytes_but_for_the_one_whose_turn_it_is(
    batches: int, nbytes: int, fit: int
) -> None:
    buffer = handoff(2, batches=batches, nbytes=nbytes)
    for ticket in range(1, fit + 1):
        assert buffer.put(made(ticket, 10), ticket, row=StageRow())
    thread, entered, row = put_late(buffer, fit + 1, fit + 1)
    assert (buffer.depth, buffer.depth_nbytes, entered) == (fit, 10 * fit, [])
    assert buffer.put(made(0, 10), 0, row=StageRow()), "its turn: it gets in, however full"
    assert buffer.depth >= fit + 1
    assert [number(buffer.take(LONG_S)) for _ in range(fit + 2)] == list(range(fit + 2))
    thread.join()
    assert entered == [True]
    assert row.wait_out_s > 0


def test_what_is_in_the_window_gets_in_when_nothing_is_ready() -> None:
    buffer = handoff(2, nbytes=20, window=2)
    for ticket in (3, 4):
        assert buffer.put(made(ticket, 10), ticket, row=StageRow())
    assert not buffer.can_take, "both are too far ahead of the first, and fill the buffer"
    thread, entered, _ = put_late(buffer, 5, 5)
    assert buffer.put(made(2, 10), 2, row=StageRow())
    assert number(buffer.take(LONG_S)) == 2
    assert buffer.put(made(1, 10), 1, row=StageRow()), "and without the first one, too"
    assert number(buffer.take(LONG_S)) == 1
    with pytest.raises(Timeout):
        buffer.take(0)
    assert buffer.put(made(0, 10), 0, row=StageRow())
    assert [number(buffer.take(LONG_S)) for _ in range(4)] == [0, 3, 4, 5]
    thread.join()
    assert entered == [True]


@pytest.mark.parametrize(("batches", "nbytes", "fit"), [(3, 100, 3), (100, 35, 3), (1, 1, 1)])
def test_what_can_leave_is_bound_also_where_everybody_comes_in_turn(
    batches: int, nbytes: int, fit: int
) -> None:
    buffer = handoff(1, batches=batches, nbytes=nbytes)
    assert all(buffer.put(made(ticket, 10), ticket, row=StageRow()) for ticket in range(fit))
    thread, entered, _ = put_late(buffer, fit, fit)
    assert (buffer.depth, entered) == (fit, [])
    assert [number(buffer.take(LONG_S)) for _ in range(fit + 1)] == list(range(fit + 1))
    thread.join()
    assert entered == [True]


@pytest.mark.parametrize(("batches", "nbytes"), [(2, 100), (100, 20), (100, 29)])
def test_the_bounds_hold_without_an_order(batches: int, nbytes: int) -> None:
    buffer, row = handoff(1, ordered=False, batches=batches, nbytes=nbytes), StageRow()
    assert all(buffer.put(made(i, 10), 0, row=row) for i in range(2))
    assert row.wait_out_s == 0
    thread, entered, row = put_late(buffer, 2, 0)
    assert (buffer.depth, buffer.depth_nbytes, entered) == (2, 20, [])
    assert [number(buffer.take(LONG_S)) for _ in range(3)] == [0, 1, 2]
    thread.join()
    assert entered == [True]
    assert row.wait_out_s > 0


def test_stop_lets_everybody_go() -> None:
    buffer = handoff(2, batches=1, nbytes=35)
    assert all(buffer.put(made(ticket, 10), ticket, row=StageRow()) for ticket in (1, 2, 3))
    thread, entered, _ = put_late(buffer, 4, 4)
    taken, _ = together([lambda: buffer.take(LONG_S), buffer.stop])
    thread.join()
    assert (entered, taken) == ([False], None)
    assert buffer.stopped
    assert (buffer.depth, buffer.depth_nbytes) == (0, 0)
    assert not buffer.put(made(0), 0, row=StageRow())
    assert buffer.take(LONG_S) is None


def test_a_failure_does_not_wait_for_a_producer_that_hangs() -> None:
    """The other producer never ends: the consumer waits for the grace time only."""
    buffer = handoff(2, ordered=False)
    buffer.fail(ValueError("broken"), None)
    buffer.end()
    with pytest.raises(ValueError, match="broken"):
        buffer.take(LONG_S)


def test_the_end_comes_after_the_last_batch_and_stays() -> None:
    buffer = handoff(1)
    buffer.put(made(0), 0, row=StageRow())
    buffer.put(END_OF_EPOCH, 1, row=StageRow())
    buffer.end()
    assert take_all(buffer) == [0, "epoch"]
    assert buffer.take(0) is None
