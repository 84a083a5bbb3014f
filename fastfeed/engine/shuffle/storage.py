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
    """Records in numbered slots."""

    def __init__(self, pad: Pad) -> None:
        self._dtypes: list[str] = []  # of leaves of bytes, before the pool was saved
        self._pad = pad
        self._rows = 0
        self._columns: list[FixedColumn | VaryingColumn] = []

    def restore_dtypes(self, dtypes: list[str]) -> None:
        """Set the dtypes of leaves of bytes, which are as wide as the widest record before."""
        self._dtypes = dtypes

    def grow(self, rows: int) -> None:
        """Grow to `rows` slots in all, and keep their content."""
        self._rows = rows
        for column in self._columns:
            column.grow(rows)

    def write(self, slots: Slots, leaves: Sequence[Array]) -> None:
        """Copy records into slots."""
        if not self._columns:
            dtypes = self._dtypes or [""] * len(leaves)
            self._columns = [
                self._column(leaf, dtype) for leaf, dtype in zip(leaves, dtypes, strict=True)
            ]
        for column, leaf in zip(self._columns, leaves, strict=True):
            column.put(slots, leaf)

    def take(self, slots: Slots) -> Batch:
        """Return copies of the records of these slots, in this order."""
        leaves = tuple([column.take(slots) for column in self._columns])
        return Batch(leaves, len(slots), sum(map(nbytes_of, leaves)))

    def forget(self, slots: Slots) -> None:
        """Release the records in these slots."""
        for column in self._columns:
            column.forget(slots)

    def bytes_dtypes(self) -> list[str]:
        """Return the present dtype of each leaf of bytes, and "" for others."""
        return [column.bytes_dtype for column in self._columns] or self._dtypes

    def _column(self, leaf: Array, dtype: str) -> FixedColumn | VaryingColumn:
        padded = self._pad is not None and self._pad is not False
        if padded and leaf.ndim > 1:
            return VaryingColumn(self._rows, self._pad)
        return FixedColumn((self._rows, *leaf.shape[1:]), np.dtype(dtype) if dtype else leaf.dtype)


class SlotStorage(RecordStorage):
    """Slots that are lent, written and given back. `origins` are the stream, item and row of each
    record."""

    def __init__(self, pad: Pad) -> None:
        super().__init__(pad)
        self.origins = np.zeros((3, 0), np.int64)
        self._free_slots: Slots = np.zeros(0, np.intp)  # a stack: [:_count]
        self._free_count = 0

    @property
    def free(self) -> int:
        """Number of free slots."""
        return self._free_count

    @property
    def lent(self) -> int:
        """Number of lent slots."""
        return len(self._free_slots) - self._free_count

    def reserve(self, rows: int) -> None:
        """Grow to `rows` slots in all, and keep their content."""
        more = rows - len(self._free_slots)
        if more <= 0:
            return
        fresh = np.arange(len(self._free_slots), rows)[::-1]
        self._free_slots = np.concatenate(
            (
                self._free_slots[: self._free_count],
                fresh,
                np.zeros(rows - self._free_count - more, np.intp),
            )
        )
        self._free_count += more
        self.origins = np.concatenate((self.origins, np.zeros((3, more), np.int64)), axis=1)
        self.grow(rows)

    def lend(self, rows: int) -> Slots:
        """Return `rows` free slots. Call reserve() before."""
        self._free_count -= rows
        return self._free_slots[self._free_count : self._free_count + rows].copy()

    def set_origins(self, slots: Slots, origins: Iterable[Any]) -> None:
        """Note the origins of the records in these slots."""
        for column, values in zip(self.origins, origins, strict=True):
            column[slots] = values

    def give_back(self, slots: Slots) -> None:
        """Free these slots."""
        self._free_slots[self._free_count : self._free_count + len(slots)] = slots
        self._free_count += len(slots)


class FixedColumn:
    """Records of one shape, side by side."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._records: Array = np.empty(shape, dtype)

    @property
    def bytes_dtype(self) -> str:
        return self._records.dtype.str if self._records.dtype.kind in "SO" else ""

    def grow(self, rows: int) -> None:
        # In place: the kernel moves the pages of a large array. There is no other view of it.
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


class VaryingColumn:
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
        records = [record for slot in slots.tolist() if (record := self._records[slot]) is not None]
        dtype = np.result_type(*{record.dtype for record in records})
        out = aligned_empty(
            (len(records), *map(max, zip(*(r.shape for r in records), strict=True))), dtype
        )
        out[...] = pad_value(self._pad, dtype)
        for place, record in zip(out, records, strict=True):
            place[tuple(map(slice, record.shape))] = record
        return out

    def forget(self, slots: Slots) -> None:
        for slot in slots.tolist():
            self._records[slot] = None


def pack_origins(origins: Array) -> str:
    """Return origins of records as text."""
    return base64.b64encode(zlib.compress(origins.astype("<i8").tobytes(), 1)).decode()


def unpack_origins(text: str) -> Array:
    """Return the origins from a text of pack_origins(), of shape (3, records)."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i8").reshape(3, -1)
