"""Records in numbered slots: every leaf, and the origin of each record."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fastfeed.core.batch import Batch, nbytes_of
from fastfeed.core.collate import Pad, aligned_empty, pad_value

Array = np.ndarray[Any, Any]
Slots = np.ndarray[Any, np.dtype[np.intp]]


class RecordStorage:
    """The records themselves, slot by slot.

    `dtypes` are those that leaves of bytes had before a pool was saved: as wide as the widest
    record so far.
    """

    def __init__(self, pad: Pad) -> None:
        self.dtypes: list[str] = []
        self._pad = pad
        self._rows = 0
        self._columns: list[_Fixed | _Varying] = []

    def grow(self, rows: int) -> None:
        """Grow to `rows` slots in all; their content stays."""
        self._rows = rows
        for column in self._columns:
            column.grow(rows)

    def write(self, slots: Slots, leaves: Sequence[Array]) -> None:
        """Copy records into slots."""
        if not self._columns:
            dtypes = self.dtypes or [""] * len(leaves)
            self._columns = [
                self._column(leaf, dtype) for leaf, dtype in zip(leaves, dtypes, strict=True)
            ]
        for column, leaf in zip(self._columns, leaves, strict=True):
            column.put(slots, leaf)

    def take(self, slots: Slots) -> Batch:
        """Return the records of these slots, copied out in this order."""
        leaves = tuple([column.take(slots) for column in self._columns])
        return Batch(leaves, len(slots), sum(map(nbytes_of, leaves)))

    def forget(self, slots: Slots) -> None:
        """Release the records in these slots."""
        for column in self._columns:
            column.forget(slots)

    def bytes_dtypes(self) -> list[str]:
        """Return for each leaf of bytes its present dtype, for others nothing."""
        return [column.bytes_dtype for column in self._columns] or self.dtypes

    def _column(self, leaf: Array, dtype: str) -> _Fixed | _Varying:
        padded = self._pad is not None and self._pad is not False
        if padded and leaf.ndim > 1:
            return _Varying(self._rows, self._pad)
        return _Fixed((self._rows, *leaf.shape[1:]), np.dtype(dtype) if dtype else leaf.dtype)


class Store(RecordStorage):
    """Slots that are lent, written and given back; `origins` are stream, item and row of each
    record."""

    def __init__(self, pad: Pad) -> None:
        super().__init__(pad)
        self.origins = np.zeros((3, 0), np.int64)
        self._free: Slots = np.zeros(0, np.intp)  # a stack: [:_count]
        self._count = 0

    @property
    def free(self) -> int:
        """Number of free slots."""
        return self._count

    @property
    def held(self) -> int:
        """Number of lent slots."""
        return len(self._free) - self._count

    def reserve(self, rows: int) -> None:
        """Grow to `rows` slots in all; their content stays."""
        more = rows - len(self._free)
        if more <= 0:
            return
        fresh = np.arange(len(self._free), rows)[::-1]
        self._free = np.concatenate(
            (self._free[: self._count], fresh, np.zeros(rows - self._count - more, np.intp))
        )
        self._count += more
        self.origins = np.concatenate((self.origins, np.zeros((3, more), np.int64)), axis=1)
        self.grow(rows)

    def lend(self, rows: int, origins: Iterable[Any]) -> Slots:
        """Return `rows` free slots for records of these origins; reserve() has made enough."""
        self._count -= rows
        slots = self._free[self._count : self._count + rows].copy()
        for column, values in zip(self.origins, origins, strict=True):
            column[slots] = values
        return slots

    def give_back(self, slots: Slots, free: int) -> None:
        """Free these slots, as `free` others were when they were taken. Repeating it changes
        nothing."""
        self._free[free : free + len(slots)] = slots
        self._count = free + len(slots)


class _Fixed:
    """Records of one shape, side by side."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._records: Array = np.empty(shape, dtype)

    @property
    def bytes_dtype(self) -> str:
        return self._records.dtype.str if self._records.dtype.kind in "SO" else ""

    def grow(self, rows: int) -> None:
        # In place: the kernel moves the pages of a large array, and there is no other view of it.
        self._records.resize((rows, *self._records.shape[1:]), refcheck=False)

    def put(self, slots: Slots, leaf: Array) -> None:
        # wider bytes, or bytes as objects
        if leaf.dtype != self._records.dtype and leaf.dtype.kind in "SO":
            self._records = self._records.astype(
                np.promote_types(self._records.dtype, leaf.dtype), copy=False
            )
        self._records[slots] = leaf

    def take(self, slots: Slots) -> Array:
        if self._records.dtype.kind == "O":
            return self._records[slots]
        out = aligned_empty((len(slots), *self._records.shape[1:]), self._records.dtype)
        # mode="raise" would copy into a buffer first
        self._records.take(slots, axis=0, out=out, mode="clip")
        return out

    def forget(self, slots: Slots) -> None:
        if self._records.dtype.kind == "O":
            self._records[slots] = None


class _Varying:
    """Records that vary in shape, each in an array of its own."""

    bytes_dtype = ""

    def __init__(self, rows: int, pad: Pad) -> None:
        self._records: list[Array | None] = [None] * rows
        self._pad = pad

    def grow(self, rows: int) -> None:
        self._records.extend([None] * (rows - len(self._records)))

    def put(self, slots: Slots, leaf: Array) -> None:
        for slot, record in zip(slots.tolist(), leaf, strict=True):
            self._records[slot] = record.copy()

    def take(self, slots: Slots) -> Array:
        """Return these records, padded to the largest of them."""
        taken = [record for slot in slots.tolist() if (record := self._records[slot]) is not None]
        dtype = np.result_type(*{record.dtype for record in taken})
        out = aligned_empty(
            (len(taken), *map(max, zip(*(r.shape for r in taken), strict=True))), dtype
        )
        out[...] = pad_value(self._pad, dtype)
        for place, record in zip(out, taken, strict=True):
            place[tuple(map(slice, record.shape))] = record
        return out

    def forget(self, slots: Slots) -> None:
        for slot in slots.tolist():
            self._records[slot] = None


def packed(origins: Array) -> str:
    """Return origins of records as text."""
    return base64.b64encode(zlib.compress(origins.astype("<i8").tobytes(), 1)).decode()


def unpacked(text: str) -> Array:
    """Return the origins that packed() was given, of shape (3, records)."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i8").reshape(3, -1)
