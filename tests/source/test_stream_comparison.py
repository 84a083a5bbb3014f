"""Copies of one stream are refused before a record is delivered twice; other streams are not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed import FeedRunner, OptionError
from fastfeed.source.stream_comparison import (
    COMPARED_ITEMS,
    HELD_ITEMS,
    StreamBeginning,
    compared,
    is_endless,
)
from tests.helpers.streams import LIMIT_S

MIXES = [(3, 0), (1, 2), (2, 2)]
in_each = pytest.mark.parametrize(("threads", "processes"), MIXES, ids=str)


def finite() -> Iterator[np.ndarray]:
    for start in range(0, 4000, 4):
        yield np.arange(start, start + 4)


def endless() -> Iterator[np.ndarray]:
    while True:
        yield from finite()


def singles() -> Iterator[np.ndarray]:
    for number in range(4000):
        yield np.array([number])


def filled() -> Iterator[np.ndarray]:
    for number in range(1000):
        yield np.full(4, number)


def reused() -> Iterator[np.ndarray]:
    array = np.empty(1)
    for number in range(4000):
        array[:] = number
        yield array


def as_list() -> list[np.ndarray]:
    return list(finite())


def constant() -> Iterator[np.ndarray]:
    for _ in range(100):
        yield np.zeros(4)


def drawn() -> Iterator[np.ndarray]:
    rng = np.random.default_rng()
    for _ in range(100):
        yield rng.random(4)


def fixed() -> dict[str, np.ndarray]:
    return {"x": np.arange(4)}


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
@pytest.mark.parametrize("source", [finite, singles, filled, as_list, lambda: iter(as_list())])
def test_no_record_is_delivered_twice(threads: int, processes: int, *, source: Any) -> None:
    found, error = taken(source, 10_000, threads=threads, processes=processes)
    assert error is not None and "several times" in str(error)
    own = 4 if source is filled else 1  # equal records of one copy
    assert len(found) == own * len(set(found))


@in_each
@pytest.mark.parametrize("source", [endless, constant, drawn, lambda: iter(fixed, None)])
def test_other_streams_are_read(threads: int, processes: int, *, source: Any) -> None:
    found, error = taken(source, 20, threads=threads, processes=processes)
    assert error is None and found


@in_each
def test_a_copy_for_each_producer_is_allowed(threads: int, processes: int) -> None:
    options: Any = {"threads": threads, "processes": processes, "repeat_per_producer": True}
    found, error = taken(finite, 10_000, **options)
    assert error is None and len(found) == 4000 * threads * max(1, processes)


def test_code_without_a_return_has_no_end() -> None:
    assert is_endless(endless()) and is_endless(itertools.count()) and is_endless(iter(int, 1))
    assert not is_endless(finite()) and not is_endless(iter([1]))


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=3), max_size=80))
def test_the_comparison_loses_nothing(items: list[list[int]]) -> None:
    digests: list[int] = []
    stream = compared(map(np.array, items), digests.append)
    assert [item.tolist() for item in stream] == items
    changes = np.flatnonzero(np.diff(list(itertools.chain(*items[:COMPARED_ITEMS]))))
    assert len(digests) == bool(0 < len(items) < HELD_ITEMS or len(changes))


def test_items_that_are_held_back_are_copied() -> None:
    found = [float(item[0]) for item in compared(reused(), lambda digest: None)]
    assert found == list(range(4000))


@pytest.mark.parametrize(
    ("items", "known"),
    [
        ([np.arange(4)], True),
        ([np.zeros((4, 2))], False),
        ([(np.zeros(4), np.arange(4))], True),
        ([np.zeros(1), np.zeros(1)], False),
        ([np.zeros(8), np.ones(8), np.zeros(8)], False),
        ([np.full(8, n) for n in range(4)], True),
        ([[{"a": n} for n in range(4)]], True),
        ([[{"a": 1}] * 4], False),
        ([1, 2, 3, 4], True),
        ([lambda: 0], False),
        ([], False),
    ],
)
def test_equal_records_say_little(items: list[Any], known: bool) -> None:
    beginning = StreamBeginning()
    for item in items:
        beginning.add(item)
    assert beginning.known is known


@pytest.mark.parametrize("ends", [HELD_ITEMS - 1, HELD_ITEMS + 5, COMPARED_ITEMS + 5])
def test_nothing_varied_is_yielded_before_it_is_compared(ends: int) -> None:
    """Records that change once, early or late, and a stream without a change that ends."""
    for change in (3, HELD_ITEMS + 2, COMPARED_ITEMS + 2):
        digests: list[int] = []
        records = [int(number >= change) for number in range(ends)]
        for record in compared(map(np.atleast_1d, records), digests.append):
            assert digests or not record.any() or change > COMPARED_ITEMS


def test_streams_that_cannot_be_pickled_are_not_compared() -> None:
    digests: list[int] = []
    assert len(list(compared(iter([lambda: 0] * 9), digests.append))) == 9
    assert not digests
