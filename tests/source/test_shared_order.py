"""Lists that the streams of a callable share, and one of them shuffles."""

from __future__ import annotations

import gc
import random
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, FeedWarning
from fastfeed.source.shared_order import SharedOrder

KNOWN = list(range(100))


def shuffled(lines: Any) -> Iterator[Any]:
    while True:
        random.Random(len(lines)).shuffle(lines)
        yield lines[0]


def rotated(lines: Any) -> Iterator[Any]:
    while True:
        lines[:] = np.roll(lines, 1)
        yield lines[0]


def from_outside() -> Iterator[Any]:
    while True:
        KNOWN.insert(0, KNOWN.pop())
        yield KNOWN[0]


def filled(cache: list[Any]) -> Iterator[Any]:
    for number in range(len(cache)):
        cache[number] = [number]
        yield cache[number]


def of_its_own(lines: list[Any]) -> Iterator[Any]:
    lines = list(lines)
    while True:
        random.shuffle(lines)
        yield lines[0]


class Data:
    def __init__(self) -> None:
        self.order = np.arange(100)

    def batches(self) -> Iterator[Any]:
        while True:
            np.random.default_rng(0).shuffle(self.order)
            yield self.order[0]


def pair(make: Callable[..., Any], *args: Any) -> list[Any]:
    return [make(*args), make(*args)]


def seen(streams: list[Any], *, items: int = 3) -> list[str]:
    """The warnings about streams that take turns."""
    orders = SharedOrder()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(items):
            for number, stream in enumerate(streams):
                next(stream)
                orders.look(number, stream)
    return [str(one.message) for one in found]


@pytest.mark.parametrize(
    ("make", "args", "name"),
    [
        (shuffled, (list(range(1000)),), "lines"),
        (shuffled, ([str(n) for n in range(1000)],), "lines"),
        (rotated, (np.arange(1000.0),), "lines"),
        (from_outside, (), "KNOWN"),
        (Data().batches, (), "self.order"),
    ],
)
def test_a_list_that_streams_share_and_shuffle_is_named_once(
    make: Any, args: Any, name: str
) -> None:
    found = seen(pair(make, *args))
    assert len(found) == 1
    assert f"`{name}`" in found[0] and "processes=" in found[0]


@pytest.mark.parametrize(
    "streams",
    [
        pair(of_its_own, list(range(1000))),
        pair(filled, [None] * 1000),
        [shuffled(list(range(1000))), shuffled(list(range(1000)))],
        [shuffled(list(range(1000)))],
        [iter(range(9)), iter(range(9))],
    ],
)
def test_what_one_stream_has_for_itself_or_only_fills_is_no_fault(streams: list[Any]) -> None:
    assert seen(streams) == []


def test_what_cannot_be_looked_at_ends_no_feed() -> None:
    class Strange:
        def __getattr__(self, name: str) -> Any:
            raise ValueError(name)

        __slots__ = ()

    def batches(strange: Strange) -> Iterator[int]:
        yield from range(9)

    assert seen(pair(batches, Strange())) == []


def test_an_ended_stream_holds_nothing() -> None:
    class Held(np.ndarray):
        pass

    orders, lines = SharedOrder(), [np.zeros(1).view(Held), 1]
    gone, stream = weakref.ref(lines[0]), of_its_own(lines)
    next(stream)
    orders.look(0, stream)
    orders.forget(0)
    del lines, stream
    gc.collect()
    assert gone() is None


def test_threads_that_shuffle_one_list_are_warned_about() -> None:
    lines, both = list(range(100)), threading.Barrier(2)

    def batches() -> Iterator[Any]:
        while True:
            both.wait(60)
            random.shuffle(lines)
            yield np.array(lines[:4])

    def take() -> None:
        with FeedRunner(lambda worker: batches(), threads=2) as runner:
            for _, _ in zip(range(40), runner, strict=False):
                pass
            both.abort()

    with pytest.warns(FeedWarning, match="`lines`"):
        take()
