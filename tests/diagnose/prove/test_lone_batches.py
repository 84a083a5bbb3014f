"""Batches that are each made from what was there after the first one."""

from __future__ import annotations

import functools
import heapq
import io
import itertools
import os
import pickle
import queue
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed.diagnose.prove.lone_batches import lone_items
from fastfeed.errors import FeedTimeout, ProducerError

COUNT = 6


class Data:
    """A data set that knows its place."""

    def __init__(self) -> None:
        self.at = 0

    def next_batch(self) -> int:
        self.at += 1
        return self.at

    def __iter__(self) -> Iterator[int]:
        while True:
            yield self.next_batch()


def made_by(make: Callable[[], Any]) -> Iterator[Any]:
    """A stream without an end and without anything of its own."""
    while True:
        yield make()


def counted_file() -> io.BytesIO:
    file = io.BytesIO()
    for number in range(99):
        pickle.dump(number, file)
    file.seek(0)
    return file


def filled_queue() -> queue.SimpleQueue[int]:
    found: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(99):
        found.put(number)
    return found


def zipped() -> Callable[[], Any]:
    numbers = itertools.count()
    return lambda: list(zip(range(2), numbers, strict=False))


KEPT: dict[str, Callable[[], Iterator[Any]]] = {
    "a loop over records": lambda: iter(range(99)),
    "a method of its object": lambda: made_by(Data().next_batch),
    "an iterator of its own": lambda: iter(Data()),
    "a file": lambda: made_by(functools.partial(pickle.load, counted_file())),
    "a heap": lambda: made_by(functools.partial(heapq.heappop, list(range(99)))),
    "a list": lambda: made_by(list(range(99)).pop),
    "a queue": lambda: made_by(filled_queue().get),
    "an iterator in zip": lambda: made_by(zipped()),
    "an order that is shuffled": lambda: itertools.cycle(np.random.permutation(99)),
}


def seeded() -> random.Random:
    np.random.seed(3)
    return random.Random(5)


def drawn() -> Iterator[Any]:
    """Random generators of its own, of the process, and one that each batch makes anew."""
    own, known = np.random.default_rng(), np.random.RandomState()
    own.bit_generator.state = np.random.PCG64(5).state
    known.seed(2)
    for number in itertools.count():
        batch = own.random(), known.rand(), np.random.rand(), np.random.default_rng(4).random()
        yield batch, number * 0


@pytest.mark.parametrize("name", KEPT)
def test_what_a_batch_keeps_for_the_next_one_shows(name: str) -> None:
    seeded()
    usual = list(itertools.islice(KEPT[name](), COUNT))
    seeded()
    lone = list(itertools.islice(lone_items(KEPT[name]()), COUNT))
    assert lone[:2] == usual[:2] and lone[2:] == usual[1:2] * (COUNT - 2) != usual[2:]


@pytest.mark.parametrize("draws", [drawn, lambda: made_by(held.random)])
def test_random_generators_go_on(draws: Callable[[], Iterator[Any]]) -> None:
    global held
    held = seeded()
    usual = list(itertools.islice(draws(), COUNT))
    held = seeded()
    made = itertools.count(0, 2).__next__  # generators without a seed
    assert list(itertools.islice(lone_items(draws(), unseeded=made), COUNT)) == usual
    assert len(set(map(str, usual))) == COUNT


held = random.Random()


def test_the_generator_of_torch_goes_on() -> None:
    torch = pytest.importorskip("torch")

    def floats() -> Iterator[Any]:
        torch.manual_seed(0)
        return made_by(lambda: torch.rand(3).tolist())

    usual = list(itertools.islice(floats(), COUNT))
    assert list(itertools.islice(lone_items(floats()), COUNT)) == usual


def test_a_stream_that_seeds_a_generator_of_its_own_is_refused() -> None:
    """Each of several producers would draw the same from it."""
    found = lone_items(drawn())
    next(found)
    with pytest.raises(ProducerError, match="with a seed"):
        next(found)


def test_a_stream_that_reads_a_file_on_is_refused(tmp_path: Path) -> None:
    """A copy of the process shares the place in it."""
    path = tmp_path / "data"
    path.write_bytes(bytes(range(100)))
    with path.open("rb", buffering=0) as file:
        found = lone_items(made_by(functools.partial(file.read, 8)))
        assert next(found) == bytes(range(8))
        with pytest.raises(ProducerError, match="reads a file on"):
            next(found)


def test_a_batch_that_fails_in_a_copy_is_an_error() -> None:
    items = itertools.chain([1], made_by(functools.partial(os._exit, 3)))
    found = lone_items(items)
    assert next(found) == 1
    with pytest.raises(ProducerError, match="failed in a copy"):
        next(found)


def test_a_batch_that_never_comes_is_an_error() -> None:
    found = lone_items(itertools.chain([1], made_by(threading.Event().wait)), most_s=0.1)
    assert next(found) == 1
    with pytest.raises(FeedTimeout, match=r"more than 0\.1 s"):
        next(found)
