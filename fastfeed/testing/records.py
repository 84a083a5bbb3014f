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

BATCH_RECORDS = 4
PADDING = -1


class Element(NamedTuple):
    """The batch of the battery: a NamedTuple around a dict and a nested list."""

    index: Any
    leaves: dict[str, Any]
    nested: tuple[Any, list[Any]]


class SourceError(Exception):
    """Raised by the battery's source in place of an unreadable record."""


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
    """Return random bits, which include infinities, denormals and nans of every kind."""
    if dtype == "bytes":
        # numpy's own bytes lose zeros at their end
        return rng.bytes(int(rng.integers(1, 9))) + b"."
    if dtype == "bool":
        return rng.integers(0, 2, (3, 2)).astype(bool)
    return np.frombuffer(rng.bytes(6 * np.dtype(dtype).itemsize), dtype).reshape(3, 2)


@dataclass(frozen=True)
class UnsizedRecords:
    """The same records as an iterable without a length."""

    records: NumberedRecords

    def __iter__(self) -> Iterator[Element]:
        return (self.records[index] for index in range(len(self.records)))


@dataclass(frozen=True)
class RaggedRecords:
    """`count` records by index, with a varying number of values."""

    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return np.int64(index), np.full(1 + index % 5, index, np.int32)


def padded_values(ids: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return the values of these records of a RaggedRecords, padded, in one array."""
    values = np.full((len(ids), max(1 + index % 5 for index in ids)), PADDING, np.int32)
    for row, index in zip(values, ids, strict=True):
        row[: 1 + index % 5] = index
    return values


@dataclass(frozen=True)
class FailingBatches:
    """`good` batches by index, followed by one that cannot be made."""

    good: int

    def __len__(self) -> int:
        return self.good + 2

    def __getitem__(self, index: int) -> Any:
        return unreadable(index) if index == self.good else (numbered(index),)


def unreadable(index: int) -> Any:
    """Raise the error that the sink must pass on; its text must contain this function's name."""
    raise SourceError(f"batch {index} cannot be read")


def numbered(index: int) -> np.ndarray[Any, Any]:
    """Return a batch that is filled with its own number."""
    return np.full((BATCH_RECORDS, 3), index, np.int32)


@dataclass(frozen=True)
class GatedBatches:
    """`count` numbered batches by index; each is made once its gate lets it pass.

    It works in threads and in processes.
    """

    count: int
    folder: str
    limit_s: float

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self._report(b"a")
        permits = os.open(f"{self.folder}/permits", os.O_RDONLY | os.O_NONBLOCK)
        try:
            if not select.select([permits], [], [], self.limit_s)[0] or not os.read(permits, 1):
                raise SourceError(f"no permit for batch {index} within {self.limit_s} s")
        finally:
            os.close(permits)
        self._report(b"p")
        return (numbered(index),)

    def _report(self, word: bytes) -> None:
        reports = os.open(f"{self.folder}/reports", os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(reports, word)
        finally:
            os.close(reports)


class ProductionGate:
    """Controls GatedBatches: grants permits, one for each batch, and follows the producers.

    It uses named pipes, which threads and processes can open alike, and on which a wait needs no
    polling.
    """

    def __init__(self, folder: str, limit_s: float) -> None:
        self._limit_s = limit_s
        self._reports = b""
        for name in ("permits", "reports"):
            os.mkfifo(Path(folder) / name)
        self._permit_pipe, self._report_pipe = (
            os.open(f"{folder}/{name}", os.O_RDWR) for name in ("permits", "reports")
        )

    def permit(self, batches: int) -> None:
        """Permit so many more batches."""
        os.write(self._permit_pipe, b"." * batches)

    def wait_passed(self, batches: int) -> None:
        """Wait until so many batches, counted from the first, have passed; raise TimeoutError."""
        self._wait(b"p", batches)

    def wait_arrived(self, batches: int) -> None:
        """Wait until a producer is at the gate with batch number `batches`; raise TimeoutError."""
        self._wait(b"a", batches)

    def close(self) -> None:
        """Close the pipes; no further batch passes."""
        os.close(self._permit_pipe)
        os.close(self._report_pipe)

    def _wait(self, word: bytes, count: int) -> None:
        deadline = time.monotonic() + self._limit_s
        while self._reports.count(word) < count:
            if not select.select(
                [self._report_pipe], [], [], max(0.0, deadline - time.monotonic())
            )[0]:
                raise TimeoutError(
                    f"the producers did not reach batch {count} within {self._limit_s} s"
                )
            self._reports += os.read(self._report_pipe, 4096)
