"""Sources for the tests of sinks; worker processes import this file, so it imports no framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from fastfeed import Worker


class Pair(NamedTuple):
    image: Any
    label: Any


class Records:
    """`length` records that contain their own index."""

    def __init__(self, length: int, size: int = 3) -> None:
        self.length, self.size = length, size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Pair:
        return Pair(np.full(self.size, index, np.float32), np.int64(index))


class Mixed(Records):
    def __getitem__(self, index: int) -> Any:
        inner = [np.array(index % 2 > 0), b"\0%d\0" % index]
        return {"z": np.uint8(index), "a": Pair(np.full((2, 2), index, np.float16), inner)}


class Ragged(Records):
    def __getitem__(self, index: int) -> Any:
        return {
            "text": np.arange(index + 1),
            "image": np.full((index + 1, 6 - index, 2), index, np.uint8),
            "n": index,
        }


class WithNone(Records):
    def __getitem__(self, index: int) -> Any:
        return {"m": None, "a": np.arange(index + 1)}, None, np.int64(index)


def bucketed(shapes: list[tuple[int, int]]) -> Callable[[], Iterator[Any]]:
    """Return a source of one batch of each shape."""

    def batches() -> Iterator[Any]:
        for shape in shapes:
            yield np.ones(shape, np.float32), np.zeros(shape[0], np.int64)

    return batches


def endless(worker: Worker) -> Iterator[Any]:
    for number in range(10**9):
        yield Pair(np.full((2, 3), number), np.array([number, number]))


def failing(worker: Worker) -> Iterator[Any]:
    yield np.zeros((2, 3), np.float32)
    raise KeyError("not there")


def labels(data: Any) -> list[int]:
    """Return the labels of all batches."""
    return [int(n) for batch in data for n in batch.label]
