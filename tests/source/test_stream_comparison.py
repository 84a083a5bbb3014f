"""Copies of one stream are refused before a record is delivered twice; other streams are not."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed import FeedRunner, OptionError
from fastfeed.source.stream_comparison import StreamComparison, digest_of, is_compared
from tests.helpers.feeds import copies
from tests.helpers.streams import LIMIT_S

MIXES = [(3, 0), (1, 2), (2, 2)]
in_each = pytest.mark.parametrize(("threads", "processes"), MIXES, ids=str)
GO_ON = threading.Event()  # never set in a worker process, which the end of the test kills
OPENED = itertools.count()  # in a worker process: streams of `far_ahead`
COMPARED, FULL = threading.Event(), threading.Event()
SLOTS = 4  # of two producers with prefetch=1


def finite() -> Iterator[np.ndarray]:
    for start in range(0, 4000, 4):
        yield np.arange(start, start + 4)


def endless() -> Iterator[np.ndarray]:
    for start in itertools.count(0, 4):
        yield np.arange(start, start + 4)


def seeded(seed: int = 0) -> Iterator[np.ndarray]:
    rng = random.Random(seed)
    while True:
        yield np.array([rng.random() for _ in range(4)])


def singles() -> Iterator[np.ndarray]:
    for number in range(4000):
        yield np.array([number])


def headed() -> Iterator[np.ndarray]:
    yield np.random.default_rng().integers(2**60, size=4)
    yield from endless()


def skipping() -> Iterator[np.ndarray]:
    return itertools.islice(endless(), int(np.random.default_rng().integers(8)), None)


def constant() -> Iterator[np.ndarray]:
    for _ in range(100):
        yield np.zeros(4)


def two() -> Iterator[np.ndarray]:
    while True:
        yield np.zeros(4)
        yield np.arange(4.0)


def drawn() -> Iterator[np.ndarray]:
    rng = np.random.default_rng()
    for _ in range(100):
        yield rng.random(4)


def begun_alike() -> Iterator[np.ndarray]:
    yield np.arange(4.0)
    yield from drawn()


def fixed() -> dict[str, np.ndarray]:
    return {"x": np.arange(4)}


def slow() -> Iterator[np.ndarray]:
    yield np.arange(4)
    GO_ON.wait()


def far_ahead() -> Iterator[np.ndarray]:
    """Two streams that begin alike; the second has filled the ring before the first makes its
    second item: see `late`."""
    first = next(OPENED) == 0
    if not first:
        COMPARED.wait(LIMIT_S)
    for number in itertools.count():
        if not first and number == SLOTS:
            FULL.set()
        yield np.array([-number if first else number])


def late(batch: np.ndarray) -> np.ndarray:
    """A transform; the first item to come is compared, and its batch waits for the other
    producer."""
    if not COMPARED.is_set():
        COMPARED.set()
        FULL.wait(LIMIT_S)
    return batch


def taken(source: Any, count: int, **options: Any) -> tuple[list[float], OptionError | None]:
    """Return the records of at most `count` batches, and the error that came before."""
    found: list[float] = []
    with FeedRunner(source, stall_timeout_s=LIMIT_S, **options) as runner:
        try:
            for batch in itertools.islice(runner, count):
                found += batch["x"].tolist() if isinstance(batch, dict) else batch.tolist()
        except OptionError as error:
            return found, error
    return found, None


@in_each
@pytest.mark.parametrize("source", [finite, singles, endless, seeded])
def test_no_record_is_delivered_twice(threads: int, processes: int, *, source: Any) -> None:
    found, error = taken(source, 10**6, threads=threads, processes=processes)
    assert error is not None and "several times" in str(error)
    assert len(found) == len(set(found))


@in_each
@pytest.mark.parametrize("source", [headed, skipping])
def test_copies_that_repeat_later_are_refused(threads: int, processes: int, source: Any) -> None:
    _, error = taken(source, 10**6, threads=threads, processes=processes)
    assert error is not None and "yield the share worker.index of worker.count" in str(error)


@in_each
@pytest.mark.parametrize("source", [constant, two, drawn, begun_alike, lambda: iter(fixed, None)])
def test_other_streams_are_read(threads: int, processes: int, *, source: Any) -> None:
    found, error = taken(source, 20, threads=threads, processes=processes)
    assert error is None and found


def test_a_stream_that_is_held_back_leaves_slots_for_the_other() -> None:
    found, error = taken(far_ahead, 20, threads=2, processes=1, transform=late, prefetch=1)
    assert error is None and len(found) == 20
    assert found.count(0) == 2 and len(set(found)) == 19


@in_each
def test_a_slow_source_gives_its_first_batch(threads: int, processes: int) -> None:
    GO_ON.clear()
    with FeedRunner(slow, threads=threads, processes=processes, stall_timeout_s=LIMIT_S) as runner:
        try:
            assert next(iter(runner)).tolist() == [0, 1, 2, 3]
        finally:
            GO_ON.set()


@in_each
@pytest.mark.parametrize("source", [finite, endless])
def test_a_copy_for_each_producer_is_allowed(threads: int, processes: int, source: Any) -> None:
    options: Any = {"threads": threads, "processes": processes}
    count = 1000 * threads * max(1, processes)
    found, error = taken(copies(source), count, **options)
    assert error is None and len(found) == 4 * count


class Delivery:
    """Streams of numbers whose next items are compared and delivered."""

    def __init__(self, *streams: Iterator[int]) -> None:
        self._comparison = StreamComparison()
        self._streams = [enumerate(stream) for stream in streams]
        self._held: list[list[int]] = [[] for _ in streams]
        self.found: list[int] = []

    def make(self, stream: int) -> bool:
        """Return True if the item was refused."""
        number, item = next(self._streams[stream])
        try:
            self._comparison.add(stream, number, digest=digest_of(item))
        except OptionError:
            return True
        self._held[stream].append(item)
        for one, held in enumerate(self._held):
            if one not in self.suspects:
                self.found += held
                held.clear()
        return False

    @property
    def suspects(self) -> set[int]:
        return self._comparison.suspects


orders = st.lists(st.integers(0, 2), max_size=30)


@given(orders)
def test_copies_in_any_order(order: list[int]) -> None:
    delivery = Delivery(*(itertools.count() for _ in range(3)))
    refused = [delivery.make(stream) for stream in order]
    assert len(delivery.found) == len(set(delivery.found))
    assert any(refused) == (sorted(order.count(stream) for stream in range(3))[1] >= 3)
    assert not order or delivery.found[0] == 0, "the first item waits for none"


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=3, max_size=3), orders
)
def test_streams_that_differ_lose_nothing(firsts: list[list[int]], order: list[int]) -> None:
    """They begin with a few items of a small set, and go on with items of their own."""
    streams = [[*first, *range(10 + n, 100, 3)] for n, first in enumerate(firsts)]
    delivery = Delivery(*map(iter, streams))
    order = [*order, *sorted(3 * [0, 1, 2, 0])]
    refused = [delivery.make(stream) for stream in order]
    if not any(refused):
        assert not delivery.suspects
        made = [item for n, stream in enumerate(streams) for item in stream[: order.count(n)]]
        assert sorted(delivery.found) == sorted(made)
    else:
        twice = [first for first in firsts if firsts.count(first) > 1]
        assert any(len(set(first)) == 3 for first in twice), "they were copies so far"


@given(st.integers(0, 9), st.integers(0, 9), orders)
def test_copies_of_another_beginning(skipped: int, own: int, order: list[int]) -> None:
    def later() -> Iterator[int]:
        yield from range(-own, 0)
        yield from itertools.count(skipped)

    delivery = Delivery(itertools.count(), later())
    order = [*(stream % 2 for stream in order), *16 * [0], *16 * [1]]
    assert any(delivery.make(stream) for stream in order) == (skipped <= 12 and own <= 12)


@given(st.lists(st.sampled_from([1, 2, 3]), min_size=40, max_size=40), orders)
def test_items_of_a_small_set_say_nothing(items: list[int], order: list[int]) -> None:
    """Three different items in a row, at the beginning of both, are needed."""
    delivery = Delivery(iter(items), iter([4, *items]))
    assert not any(delivery.make(stream % 2) for stream in order)


def test_few_items_are_compared() -> None:
    compared = [number for number in range(10**5) if is_compared(number)]
    assert compared[:24] == [*range(20), *range(32, 36)] and len(compared) < 80


@pytest.mark.parametrize(
    ("item", "other", "equal"),
    [
        (np.arange(4), np.arange(4), True),
        (np.arange(4), np.arange(5), False),
        (np.arange(4), np.arange(4.0), False),
        ((np.zeros(9), np.ones(1)), (np.zeros(9), np.zeros(1)), False),
        (np.arange(10**6), np.arange(10**6), True),
        (np.arange(10**6), np.arange(10**6) + 1, False),
        ({"x": 1, "y": "a"}, {"x": 1, "y": "b"}, False),
        ([{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 2}], True),
        ([{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 3}], False),
        (len, len, True),
        (lambda: 0, lambda: 0, False),
    ],
)
def test_digests_tell_items_apart(item: Any, other: Any, equal: bool) -> None:
    assert (digest_of(item) == digest_of(other)) is equal
