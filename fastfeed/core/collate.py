"""Collating records to batches, and re-batching; records stay whole, unique and aligned."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fastfeed.core.batch import Batch
from fastfeed.core.dtypes import check_dtype
from fastfeed.core.leaves import array_of
from fastfeed.core.structure import (
    describe,
    leaves_of,
    paths_of,
    rebuild,
    structure_of,
)
from fastfeed.errors import OptionError, SpecError

Fill = bool | int | float | None
# In place of a fill value where only the user's own function knows it.
NO_FILL = float("nan")
# TensorFlow takes arrays at such an address without a copy; numpy guarantees only 16.
ALIGN = 64


Blank = tuple[tuple[int, ...], "np.dtype[Any]"]  # shape and dtype of an array to allocate
Allocate = Callable[[Sequence[Blank]], Sequence["np.ndarray[Any, Any]"]]


class LateLeaf:
    """A leaf of a record that is computed into the memory of its batch: a copy afterwards takes
    three times as long as the computation.

    Records of a leaf that is `ragged` may vary in shape: the rest of their rows has no meaning.
    """

    ragged: ClassVar[bool] = False
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def write(self, out: np.ndarray[Any, Any]) -> None:
        """Write the values into the beginning of `out`, which has the dtype."""
        raise NotImplementedError


def aligned_arrays(blanks: Sequence[Blank]) -> list[np.ndarray[Any, Any]]:
    """Return empty arrays that begin at a multiple of ALIGN bytes."""
    return [aligned_empty(shape, dtype) for shape, dtype in blanks]


def collate(
    records: Sequence[Any],
    pad: Fill,
    *,
    place: str,
    allocate: Allocate = aligned_arrays,
    mixed: bool = False,
) -> tuple[Any, list[tuple[bool, ...]]]:
    """Collate single records to one batch; return it and, for each leaf, which record axes varied.

    Leaves become arrays of shape (len(records), *record shape). Records that differ in shape are
    padded at the end with `pad` (True: zeros). Raise SpecError if they differ and `pad` is None. If
    every leaf has one shape, the batch is written into the arrays that `allocate` returns. With
    `mixed`, numbers of several dtypes get one that holds them all.
    """
    structure = structure_of(records[0])
    rows = []
    for position, record in enumerate(records):
        leaves = leaves_of(structure, record)
        if leaves is None:
            raise SpecError(
                f"record {position} of {place} has another structure than record 0: expected "
                f"{describe(structure)}, got {describe(structure_of(record))}"
            )
        rows.append(leaves)
    columns = []
    for column, path in zip(zip(*rows, strict=True), paths_of(structure, "record"), strict=True):
        columns.append(_column(column, pad, where=f"{path} of {place}", mixed=mixed))
    if all(c.shape is not None for c in columns):
        out = allocate([((len(rows), *(c.shape or ())), c.values[0].dtype) for c in columns])
        arrays = [_filled(blank, c.values) for c, blank in zip(columns, out, strict=True)]
        return rebuild(structure, arrays), [(c.ragged,) * len(c.shape or ()) for c in columns]
    stacked = [_stack(c, pad) for c in columns]
    return rebuild(structure, [array for array, _ in stacked]), [axes for _, axes in stacked]


def lengths_of(record: Any) -> Any:
    """Return the shapes of a record's leaves, in its structure, as int32 of shape (axes,)."""
    structure = structure_of(record)
    return rebuild(
        structure,
        [np.array(np.shape(leaf), np.int32) for leaf in leaves_of(structure, record) or []],
    )


class Rebatcher:
    """Cuts and joins batches of any size to batches of exactly `size` records, in order.

    A batch that already fits passes through untouched, and a batch that is cut becomes views. Only
    an output batch that straddles several input batches is copied. `last` says what `flush` does
    with the remainder: "keep" or "drop" (counted in `dropped`).
    """

    def __init__(
        self, size: int, last: str, *, pad: Fill = None, across_epochs: bool = False
    ) -> None:
        self.size = size
        self._across_epochs = across_epochs
        self.dropped = 0
        self._keep = last == "keep"
        self._pad = pad
        self._parts: list[Batch] = []  # of the next batch
        self._rows = 0  # in them
        self.grown = False  # True if a batch had more records

    def push(self, batch: Batch, stream: int = 0, *, place: str = "") -> Iterable[Batch]:
        """Add a batch and return the complete batches; `stream` and `place` are ignored. Raise
        SpecError for records that have changed while they waited."""
        self.grown = self.grown or batch.rows > self.size
        if batch.rows == self.size and not self._rows:
            return (batch,)
        batch.settle()
        found, start = [], 0
        while start < batch.rows:
            stop = min(batch.rows, start + self.size - self._rows)
            self._parts.append(_cut(batch, start, stop=stop))
            self._rows += stop - start
            if self._rows == self.size:
                found.append(self._joined())
            start = stop
        batch.refuse_changed()  # now: what changes from here on changes its parts
        return found

    def end_epoch(self) -> Iterable[Batch]:
        """Return the remainder of the epoch, unless batches may straddle epochs."""
        return () if self._across_epochs else self.flush()

    def flush(self) -> Iterable[Batch]:
        """Return the remainder, or drop it."""
        if not self._rows:
            return ()
        rest = self._joined()
        if self._keep:
            return (rest,)
        self.dropped += rest.rows
        return ()

    def _joined(self) -> Batch:
        parts, self._parts, self._rows = self._parts, [], 0
        return parts[0] if len(parts) == 1 else join(parts, self._pad)


class PassThrough:
    """Passes batches of any size through, for a sink that takes single records out of them."""

    dropped = 0

    def push(self, batch: Batch, stream: int = 0, *, place: str = "") -> Iterable[Batch]:
        """Return the batch itself."""
        return (batch,)

    def end_epoch(self) -> Iterable[Batch]:
        """Return nothing: no record is held back."""
        return ()

    flush = end_epoch


class SizeChecker:
    """Passes batches through as produced, and checks that none is larger than the first.

    A smaller one may come anywhere, as the last of an epoch where a generator makes several.
    `sizes` gives the records per batch of each stream, if an earlier run determined them.
    """

    dropped = 0

    def __init__(self, sizes: dict[int, int] | None = None) -> None:
        self.sizes = dict(sizes or {})

    def push(self, batch: Batch, stream: int = 0, *, place: str = "") -> Iterable[Batch]:
        """Return the batch itself; raise SpecError if it is larger."""
        size = self.sizes.setdefault(stream, batch.rows)
        if batch.rows > size:
            raise SpecError(
                f"the leading dimension changed midway: {place} has {batch.rows} records, more "
                f"than the {size} of the first batch. Set batch_size= to cut the stream into equal "
                "batches (pad=True if they vary on purpose)"
            )
        return (batch,)

    def end_epoch(self) -> Iterable[Batch]:
        """Return nothing: no record is held back."""
        return ()

    flush = end_epoch


def tail(batch: Batch, start: int) -> Batch:
    """Return the records from `start` on. Raise SpecError if they have changed while they
    waited."""
    found = _cut(batch, min(start, batch.rows), stop=batch.rows)
    batch.refuse_changed()
    return found


def join(parts: Sequence[Batch], pad: Fill) -> Batch:
    """Concatenate batches. Raise SpecError if one has changed while it waited."""
    leaves = tuple(
        _concatenate([p.leaves[i] for p in parts], pad) for i in range(len(parts[0].leaves))
    )
    for part in parts:
        part.refuse_changed()  # now: it may have changed while it was copied
    return Batch(leaves, sum(p.rows for p in parts), sum(p.nbytes for p in parts))


def _cut(batch: Batch, start: int, *, stop: int) -> Batch:
    """Return some records as views, which are watched if the batch is."""
    rows = stop - start
    if rows == batch.rows:
        return batch
    leaves = tuple(leaf[start:stop] for leaf in batch.leaves)
    found = Batch(leaves, rows, batch.nbytes * rows // batch.rows)
    if batch.watched is not None:
        found.watch(batch.watched[0])
    return found


def _concatenate(arrays: list[np.ndarray[Any, Any]], pad: Fill) -> np.ndarray[Any, Any]:
    if any(a.dtype.kind == "O" for a in arrays):
        arrays = [a.astype(object) for a in arrays]
    if len({a.shape[1:] for a in arrays}) > 1:
        shape = tuple(map(max, zip(*(a.shape[1:] for a in arrays), strict=True)))
        arrays = [_padded(a, (a.shape[0], *shape), pad=pad) for a in arrays]
    shape = (sum(a.shape[0] for a in arrays), *arrays[0].shape[1:])
    return np.concatenate(arrays, out=aligned_empty(shape, np.result_type(*arrays)))


class _Column(NamedTuple):
    """One leaf of all records; `shape` is None if the shapes differ, and for bytes."""

    values: Sequence[Any]
    shape: tuple[int, ...] | None
    ragged: bool = False


def _column(values: Sequence[Any], pad: Fill, *, where: str, mixed: bool) -> _Column:
    if isinstance(values[0], (bytes, str)) and type(values[0]) is not np.bytes_:
        kind = str if isinstance(values[0], str) else bytes
        other = next((v for v in values if not isinstance(v, kind)), None)
        if other is not None:
            raise SpecError(
                f"{where} is {kind.__name__} in one record and {type(other).__name__} in another: "
                "yield one type"
            )
        return _Column(values, None)
    if isinstance(values[0], LateLeaf):
        shapes = {v.shape for v in values}
        if values[0].ragged or len(shapes) == 1:
            largest = tuple(map(max, zip(*shapes, strict=True)))
            return _Column(values, largest, values[0].ragged)
        values = [_filled(np.empty((1, *v.shape), v.dtype), [v])[0] for v in values]
    arrays = [_record_array(v, where) for v in values]
    first = next((a for a in arrays if a.size), arrays[0])
    if all(a.dtype.kind == "S" for a in arrays):  # a record of an array has a width of its own
        first = max(arrays, key=lambda a: a.dtype.itemsize)
        arrays = [a.astype(first.dtype) for a in arrays]
    # an empty list has no dtype of its own
    arrays = [a if a.size else a.astype(first.dtype) for a in arrays]
    if any(a.dtype != first.dtype for a in arrays):
        arrays = _of_one_dtype(arrays, mixed=mixed, where=where)
        first = arrays[0]
    shapes = {a.shape for a in arrays}
    if len(shapes) == 1 and first.dtype.kind not in "SOU":
        return _Column(arrays, first.shape)
    if len({len(s) for s in shapes}) > 1:
        raise SpecError(
            f"{where} must have the same number of dimensions in every record, got shapes such as "
            f"{sorted(shapes)[:3]}"
        )
    if pad is None and len(shapes) > 1:
        raise SpecError(
            f"{where} has records of varying shape, such as {sorted(shapes)[:3]}: set pad=True "
            "(zeros) or pad=<number>, or make one shape in transform="
        )
    return _Column(arrays, None)


def _of_one_dtype(
    arrays: Sequence[np.ndarray[Any, Any]], *, mixed: bool, where: str
) -> list[np.ndarray[Any, Any]]:
    """Return arrays of different dtypes in the one that holds all their values. Raise SpecError
    unless `mixed`, and if there is none."""
    if mixed and {a.dtype.kind for a in arrays} <= set("biufc"):
        found = [a.astype(np.result_type(*arrays)) for a in arrays]
        with np.errstate(invalid="ignore"):
            back = [f.astype(a.dtype) for f, a in zip(found, arrays, strict=True)]
        if all(
            a.dtype.kind == "f" or np.array_equal(a, b) for a, b in zip(arrays, back, strict=True)
        ):
            return found
    one, other, *_ = dict.fromkeys(str(a.dtype) for a in arrays)
    raise SpecError(
        f"{where} has dtype {one} in one record and {other} in another: yield one dtype, or cast "
        "this leaf with dtypes= in the structure of the batch"
    )


def _filled(out: np.ndarray[Any, Any], values: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Write the values of a column, which fit, into `out`."""
    if not isinstance(values[0], LateLeaf):
        return np.stack(values, out=out)
    for row, value in zip(out, values, strict=True):
        value.write(row)
    return out


def _stack(column: _Column, pad: Fill) -> tuple[np.ndarray[Any, Any], tuple[bool, ...]]:
    values = column.values
    if isinstance(values[0], LateLeaf):
        out = aligned_empty((len(values), *(column.shape or ())), values[0].dtype)
        return _filled(out, values), (column.ragged,) * (out.ndim - 1)
    # As objects: numpy's own S dtype would cut the zero bytes at the end of a record.
    if isinstance(values[0], (bytes, str)):
        out = np.empty(len(values), object)
        out[:] = values
        return out, ()
    if len({a.shape for a in values}) == 1:
        out = aligned_empty((len(values), *values[0].shape), values[0].dtype)
        return np.stack(values, out=out), (False,) * values[0].ndim
    return _stack_padded(values, pad)


def _stack_padded(
    arrays: Sequence[np.ndarray[Any, Any]], pad: Fill
) -> tuple[np.ndarray[Any, Any], tuple[bool, ...]]:
    sizes = list(zip(*(a.shape for a in arrays), strict=True))
    out = aligned_empty((len(arrays), *map(max, sizes)), arrays[0].dtype)
    out[:] = pad_value(pad, arrays[0].dtype)
    for row, array in zip(out, arrays, strict=True):
        row[tuple(map(slice, array.shape))] = array
    return out, tuple(len(set(s)) > 1 for s in sizes)


def _record_array(value: Any, where: str) -> np.ndarray[Any, Any]:
    array = value if type(value) is np.ndarray else array_of(value, where)
    if type(value) is np.bytes_ or array.dtype.kind in "biufc":
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    # As objects: the width of numpy's text differs from record to record.
    return check_dtype(array.astype(object) if array.dtype.kind == "U" else array, where)


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return an empty array at an address that TensorFlow takes without a copy.

    Arrays of objects and arrays without elements are not aligned.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if not nbytes or dtype.kind == "O":
        return np.empty(shape, dtype)
    raw = np.empty(nbytes + ALIGN, np.uint8)
    return np.ndarray(shape, dtype, raw, -raw.ctypes.data % ALIGN)


def _padded(
    array: np.ndarray[Any, Any], shape: tuple[int, ...], *, pad: Fill
) -> np.ndarray[Any, Any]:
    if array.shape == shape:
        return array
    out = aligned_empty(shape, array.dtype)
    out[:] = pad_value(pad, array.dtype)
    out[tuple(map(slice, array.shape))] = array
    return out


def pad_value(pad: Fill, dtype: np.dtype[Any]) -> Any:
    """Return the value that fills a padded record, in the leaf's dtype.

    Raise OptionError if the dtype cannot hold `pad`, SpecError for NO_FILL.
    """
    if pad is NO_FILL:
        raise SpecError(
            "collate= has made batches of different widths, and records of them are joined to one "
            '(filter=, on_error="skip" and the shuffle of a stream do that): with pad=True the '
            "fill value of collate= is unknown. Pad to one width in collate=, or pass pad=NUMBER, "
            "which fills all leaves"
        )
    if dtype.kind in "SO":
        return b""
    if dtype.kind == "U":
        return ""
    if pad is None or isinstance(pad, bool):
        return 0
    value = np.array(pad)
    if dtype.kind in "iub" and not (math.isfinite(pad) and value.astype(dtype) == value):
        raise OptionError(
            f"pad={pad!r} does not fit into a leaf of dtype {dtype}: choose a number that it can "
            "hold"
        )
    return value.astype(dtype)
