"""The records that the battery feeds: every value follows from the record's number."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

BATCH = 4
PADDING = -1


class Element(NamedTuple):
    """The batch of the battery: a NamedTuple around a dict and a nested list."""

    index: Any
    leaves: dict[str, Any]
    nested: tuple[Any, list[Any]]


class SourceError(Exception):
    """Raised by the battery's source, in place of a record that cannot be read."""


@dataclass(frozen=True)
class NumberedRecords:
    """`count` records by index, with a leaf of each of `dtypes`."""

    count: int
    dtypes: Sequence[str]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Element:
        rng = np.random.default_rng(index)
        leaves = {dtype: _leaf(rng, dtype) for dtype in self.dtypes}
        number = np.float32(index / 7)
        return Element(
            np.int64(index),
            leaves,
            (number, [np.full((2,), index % 256, np.uint8), np.float32(-0.0)]),
        )


def _leaf(rng: np.random.Generator, dtype: str) -> Any:
    """Return random bits, so that there are also infinities, denormals and nans of every kind."""
    if dtype == "bytes":
        # numpy's own bytes lose zeros at their end
        return rng.bytes(int(rng.integers(1, 9))) + b"."
    if dtype == "bool":
        return rng.integers(0, 2, (3, 2)).astype(bool)
    return np.frombuffer(rng.bytes(6 * np.dtype(dtype).itemsize), dtype).reshape(3, 2)


@dataclass(frozen=True)
class Unsized:
    """The same records one after another, without a known length."""

    records: NumberedRecords

    def __iter__(self) -> Iterator[Element]:
        return (self.records[index] for index in range(len(self.records)))


@dataclass(frozen=True)
class Ragged:
    """`count` records by index, whose values vary in number."""

    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return np.int64(index), np.full(1 + index % 5, index, np.int32)


def padded_values(ids: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return the values of these records of a Ragged, in one array."""
    values = np.full((len(ids), max(1 + index % 5 for index in ids)), PADDING, np.int32)
    for row, index in zip(values, ids, strict=True):
        row[: 1 + index % 5] = index
    return values


@dataclass(frozen=True)
class Broken:
    """`good` batches by index, and then one that cannot be made."""

    good: int

    def __len__(self) -> int:
        return self.good + 2

    def __getitem__(self, index: int) -> Any:
        return unreadable(index) if index == self.good else (numbered(index),)


def unreadable(index: int) -> Any:
    """Raise what the sink must pass on, under a name that its text must show."""
    raise SourceError(f"batch {index} cannot be read")


def numbered(index: int) -> np.ndarray[Any, Any]:
    """Return a batch filled with its own number."""
    return np.full((BATCH, 3), index, np.int32)


@dataclass(frozen=True)
class Gated:
    """`count` numbered batches, each made as soon as its gate lets one more pass, in threads and in
    processes."""

    count: int
    folder: str
    limit_s: float

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self._tell(b"a")
        permits = os.open(f"{self.folder}/permits", os.O_RDONLY | os.O_NONBLOCK)
        try:
            if not select.select([permits], [], [], self.limit_s)[0] or not os.read(permits, 1):
                raise SourceError(f"no permit for batch {index} within {self.limit_s} s")
        finally:
            os.close(permits)
        self._tell(b"p")
        return (numbered(index),)

    def _tell(self, word: bytes) -> None:
        news = os.open(f"{self.folder}/news", os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(news, word)
        finally:
            os.close(news)


class ProductionGate:
    """Lets the producers of a Gated source make one batch for each permit, and learns how far they
    are.

    It uses named pipes, which reach threads and processes alike, and on which a wait needs no
    sleep.
    """

    def __init__(self, folder: str, limit_s: float) -> None:
        self._limit_s = limit_s
        self._heard = b""
        for name in ("permits", "news"):
            os.mkfifo(Path(folder) / name)
        self._permits, self._news = (
            os.open(f"{folder}/{name}", os.O_RDWR) for name in ("permits", "news")
        )

    def let(self, batches: int) -> None:
        """Allow `batches` more."""
        os.write(self._permits, b"." * batches)

    def wait_passed(self, batches: int) -> None:
        """Return when `batches`, counted from the first, have passed. Raise TimeoutError."""
        self._wait(b"p", batches)

    def wait_arrived(self, batches: int) -> None:
        """Return when a producer waits at the gate with its `batches`-th. Raise TimeoutError."""
        self._wait(b"a", batches)

    def close(self) -> None:
        """Let no batch pass any more."""
        os.close(self._permits)
        os.close(self._news)

    def _wait(self, word: bytes, count: int) -> None:
        deadline = time.monotonic() + self._limit_s
        while self._heard.count(word) < count:
            if not select.select([self._news], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(
                    f"the producers did not get to batch {count} within {self._limit_s} s"
                )
            self._heard += os.read(self._news, 4096)
