"""Sources for the tests of the runner: the records 0, 1, 2 ... in every accepted form."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from fastfeed import Worker

LONG_S = 60.0  # longer than any wait that ends as it should


def chunks(
    total: int, size: int, step: int = 1, offset: int = 0
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(i, -i) in batches of `size`, every `step`-th of them."""
    for start in range(offset * size, total, step * size):
        ids = np.arange(start, min(start + size, total))
        yield ids, -ids


def shared_out(total: int, size: int) -> Callable[..., Any]:
    """A callable that takes its share as an argument."""

    def stream(worker: Worker) -> Iterator[Any]:
        return chunks(total, size, worker.count, worker.index)

    return stream


class Readable:
    """An iterable that can be read again."""

    def __init__(self, make: Callable[[], Iterable[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return iter(self._make())


class Blocked:
    """A callable whose stream gives `batches` and then waits until it is released."""

    def __init__(self, batches: Iterable[Any] = ()) -> None:
        self.batches = list(batches)
        self.reached = threading.Event()
        self.let_go = threading.Event()

    def __call__(self) -> Iterator[Any]:
        yield from self.batches
        self.reached.set()
        self.let_go.wait(LONG_S)

    def __enter__(self) -> Blocked:
        return self

    def __exit__(self, *error: object) -> None:
        self.let_go.set()


class Broken(Exception):
    """Raised by the producers of these tests."""


def copies(make: Callable[[], Any]) -> Callable[[Worker], Any]:
    """A callable that gives each producer the full copy that `make` returns."""
    return lambda worker: make()


def broken_after(count: int, size: int = 4) -> Callable[[], Iterator[Any]]:
    """A stream that raises instead of its batch number `count`."""

    def stream() -> Iterator[Any]:
        yield from chunks(count * size, size)
        raise Broken("the disk is gone")

    return stream


def ids_of(batches: Iterable[Any]) -> list[int]:
    """Return the records of batches (i, -i), each of which must be whole."""
    found: list[int] = []
    for ids, negative in batches:
        assert (ids == -negative).all(), "records are mixed up between leaves"
        found += ids.tolist()
    return found
