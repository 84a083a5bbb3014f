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
from fastfeed.source.stream_comparison import beginning_of, digest_of, is_endless
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
@pytest.mark.parametrize("source", [finite, singles])
def test_no_record_is_delivered_twice(threads: int, processes: int, *, source: Any) -> None:
    found, error = taken(source, 10_000, threads=threads, processes=processes)
    assert error is not None and "several times" in str(error)
    assert len(found) == len(set(found))


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


@given(st.lists(st.integers(1, 6), max_size=8))
def test_the_beginning_loses_nothing(sizes: list[int]) -> None:
    items = [np.arange(size) for size in sizes]
    stream = iter(items)
    first = beginning_of(stream)
    assert [id(item) for item in [*first, *stream]] == [id(item) for item in items]
    assert sum(map(len, first)) >= min(4, sum(sizes))


@pytest.mark.parametrize(
    ("items", "known"),
    [
        ([np.arange(4)], True),
        ([np.zeros((4, 2))], False),
        ([(np.zeros(4), np.arange(4))], True),
        ([np.zeros(1), np.zeros(1)], False),
        ([np.zeros(1), np.ones(1)], True),
        ([[{"a": 1}, {"a": 2}]], True),
        ([[{"a": 1}, {"a": 1}]], False),
        ([lambda: 0], False),
        ([], False),
    ],
)
def test_equal_records_say_nothing(items: list[Any], known: bool) -> None:
    assert (digest_of(items) is not None) is known
