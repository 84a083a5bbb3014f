"""Sources for the tests of every mix of processes and threads.

Worker processes import this file, so it has light imports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from fastfeed import FeedRunner, Worker
from tests.helpers.feeds import (
    Broken,
    chunks,
)

MIXES = [(0, 1), (0, 4), (1, 1), (2, 1), (1, 3), (2, 2)]
LIMIT_S = 60  # no feed of a test stalls for that long, unless it hangs


def name(mix: tuple[int, int]) -> str:
    return f"{mix[0]}x{mix[1]}"


def producers(mix: tuple[int, int]) -> int:
    return max(1, mix[0]) * mix[1]


def runner_of(source: Any, mix: tuple[int, int], **options: Any) -> FeedRunner:
    return FeedRunner(source, processes=mix[0], threads=mix[1], stall_timeout_s=LIMIT_S, **options)


class Named(NamedTuple):
    """A batch or an item with names."""

    ids: Any
    rest: Any


def pair(index: int) -> tuple[int, int]:
    return index, -index


def told(item: Any, worker: Worker) -> np.ndarray:
    """Return the transform's worker and its random draw, as one record."""
    return np.array(
        [[item, worker.index, worker.count, worker.seed, worker.epoch, worker.rng.integers(2**62)]]
    )


def broken_at(number: int) -> Callable[[int], np.ndarray]:
    """A transform that raises at one item."""

    def transform(item: int) -> np.ndarray:
        if item == number:
            raise Broken("the disk is gone", item)  # the user's own line
        return np.array([item])

    return transform


class BrokenRows:
    """Records of which some cannot be read."""

    def __init__(self, length: int, broken: set[int]) -> None:
        self.length = length
        self.broken = broken

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index in self.broken:
            raise Broken(f"row {index}")
        return index


def first_waits(path: str, rows: Callable[[int], int]) -> Callable[[int], np.ndarray]:
    """A transform that makes item 0 once another producer has opened and closed the FIFO."""

    def transform(item: int) -> np.ndarray:
        if item == 0:
            with open(path) as gate:
                gate.read()
        return np.full((rows(item), 4), item)

    return transform


def gated(path: str, error: Exception | None = None) -> Callable[[Worker], Iterator[Any]]:
    """Yield a batch of the first producer; the others wait for the FIFO at `path`, then end."""

    def stream(worker: Worker) -> Iterator[Any]:
        if worker.index == 0:
            yield from chunks(8, 8)
        with open(path) as gate:
            gate.read()
        if error is not None:
            raise error  # the user's own line

    return stream
