"""The records that the battery feeds, whose values follow from their numbers, and the comparison of
what a sink gives with them: functions that describe a difference, or return ""."""

from __future__ import annotations

import os
import select
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from fastfeed.core.structure import (
    Container,
    Structure,
    describe,
    leaves_of,
    paths_of,
    structure_of,
)
from fastfeed.testing.contract import SinkTraits

Array = np.ndarray[Any, Any]
BATCH_RECORDS = 4
PADDING = 255
MAX_SHOWN = 8  # numbers in a text


class Element(NamedTuple):
    """The batch of the battery: a NamedTuple around a dict and a nested list."""

    index: Any
    leaves: dict[str, Any]
    nested: tuple[Any, list[Any]]


class SourceError(Exception):
    """Raised by the battery's source in place of an unreadable record."""


@dataclass(frozen=True)
class NumberedRecords:
    """`count` records by index, with a leaf of each of `dtypes`.

    One leaf of `ragged` records has a varying length. The record `bad` cannot be read. Each batch
    waits for a byte in the pipe `gate`, a path, for at most `limit_s`.
    """

    count: int
    dtypes: Sequence[str] = ("int64",)
    ragged: bool = False
    bad: int | None = None
    gate: str | None = None
    limit_s: float = 0.0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Element:
        if index == self.bad:
            unreadable(index)
        if self.gate is not None and index % BATCH_RECORDS == 0:
            wait_for_permit(self.gate, self.limit_s)
        rng = np.random.default_rng(index)
        leaves = {dtype: _leaf(rng, dtype) for dtype in self.dtypes}
        length = 1 + index % 5 if self.ragged else 2
        rest = [np.full(length, index % 256, np.uint8), np.float32(-0.0)]
        return Element(np.int64(index), leaves, (np.float32(index / 7), rest))


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


def unreadable(index: int) -> None:
    """Raise the error that the sink must pass on; its text must contain this function's name."""
    raise SourceError(f"record {index} cannot be read")


@contextmanager
def gate(path: str) -> Iterator[Callable[[int], object]]:
    """Yield a function that permits so many more batches of records with this gate: a named pipe,
    which threads and processes can open alike, and on which a wait needs no polling."""
    os.mkfifo(path)
    end = os.open(path, os.O_RDWR)
    try:
        yield lambda batches: os.write(end, b"." * batches)
    finally:
        os.close(end)


def wait_for_permit(path: str, limit_s: float) -> None:
    """Wait until another batch is permitted. Raise SourceError after `limit_s` seconds."""
    end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not select.select([end], [], [], limit_s)[0] or not os.read(end, 1):
            raise SourceError(f"no permit for a batch within {limit_s} s")
    finally:
        os.close(end)


@dataclass(frozen=True)
class ReceivedElement:
    """A copy of one element: later changes of the sink's memory do not affect it."""

    structure: Structure
    leaves: tuple[Array, ...]

    @property
    def ids(self) -> list[int]:
        """The numbers of its records, from the first leaf; empty if that holds something else."""
        try:
            return [int(i) for i in self.leaves[0].reshape(-1)]
        except (IndexError, TypeError, ValueError, OverflowError):
            return []

    def same(self, other: ReceivedElement) -> bool:
        """Return True if both are equal bit for bit."""
        return self.structure == other.structure and all(map(_same_bits, self.leaves, other.leaves))


def received(element: Any, to_numpy: Callable[[Any], Any] | None) -> ReceivedElement:
    """Return a copy of an element's content."""
    element = element if to_numpy is None else to_numpy(element)
    structure = structure_of(element)
    found = leaves_of(structure, element) or []
    return ReceivedElement(structure, tuple(np.array(np.asarray(leaf)) for leaf in found))


def wrong_content(
    element: ReceivedElement, records: NumberedRecords, *, traits: SinkTraits
) -> dict[str, str]:
    """Return what is wrong with an element of these records, by promise; "" for what is right."""
    ids = [i for i in element.ids if 0 <= i < len(records)]
    wanted = _expected(ids or range(BATCH_RECORDS), records, traits=traits)
    found = dict.fromkeys(("structure", "dtypes", "values"), "")
    if element.structure != wanted.structure:
        shown = describe(element.structure), describe(wanted.structure)
        found["structure"] = "is {} instead of {}".format(*shown)
    if len(ids) != len(element.ids) or not ids:
        found["values"] = f"has the records {shortened(element.ids)}, which are not in the source"
    by_path = dict(zip(paths_of(wanted.structure), wanted.leaves, strict=True))
    for path, leaf in zip(paths_of(element.structure), element.leaves, strict=True):
        want = by_path.get(path, leaf)
        promise = "values"
        if _dtype(leaf) != _dtype(want):
            promise, differs = "dtypes", f"has dtype {_dtype(leaf)} instead of {_dtype(want)}"
        elif leaf.shape != want.shape:
            differs = f"has the shape {leaf.shape} instead of {want.shape}"
        elif not _same_bits(leaf, want):
            differs = f"is\n{leaf}\ninstead of\n{want}"
        else:
            continue
        found[promise] = found[promise] or f"{path} {differs}"
    return found


def wrong_ids(ids: Sequence[int], wanted: Iterable[int]) -> str:
    """Describe the records that are missing, repeated or unknown, or the first one out of order."""
    return wrong_count(ids, wanted) or wrong_order(ids)


def wrong_order(ids: Sequence[int]) -> str:
    """Describe the first record that came after a later one."""
    for before, after in pairwise(dict.fromkeys(ids)):
        if after < before:
            return f"record {after} came after record {before}"
    return ""


def wrong_count(ids: Sequence[int], wanted: Iterable[int]) -> str:
    """Describe the records that are missing, repeated or unknown."""
    counts, wanted = Counter(ids), set(wanted)
    parts = {
        "missing": wanted - set(counts),
        "more than once": {i for i, count in counts.items() if count > 1},
        "unknown": set(counts) - wanted,
    }
    return "; ".join(
        f"{len(found)} records {name}: {shortened(sorted(found))}"
        for name, found in parts.items()
        if found
    )


def shortened(numbers: Sequence[int]) -> str:
    """Return the first few numbers as text."""
    text = ", ".join(map(str, numbers[:MAX_SHOWN]))
    return text + ", ..." if len(numbers) > MAX_SHOWN else text


def _expected(
    ids: Sequence[int], records: NumberedRecords, *, traits: SinkTraits
) -> ReceivedElement:
    """Return the expected element of these records, for a sink with these traits."""
    each = [records[i] for i in ids]
    structure = structure_of(each[0])
    leaves = []
    for column in zip(*(leaves_of(structure, record) or [] for record in each), strict=True):
        leaf = _stacked(column)
        with np.errstate(all="ignore"):
            leaves.append(leaf.astype(traits.casts.get(str(leaf.dtype), leaf.dtype)))
    return ReceivedElement(_as_tuples(structure, traits), tuple(leaves))


def _stacked(column: Sequence[Any]) -> Array:
    """Return the leaf of a batch, padded if its records vary in length."""
    if len({np.shape(value) for value in column}) == 1:
        return np.array(column, object if isinstance(column[0], bytes) else None)
    leaf = np.full((len(column), max(map(len, column))), PADDING, column[0].dtype)
    for row, value in zip(leaf, column, strict=True):
        row[: len(value)] = value
    return leaf


def _as_tuples(structure: Structure, traits: SinkTraits) -> Structure:
    """Return the structure with tuples where the sink converts containers to tuples."""
    if structure is None:
        return None
    kind, keys = structure.kind, structure.keys
    if traits.lists_become_tuples and issubclass(kind, list):
        kind = tuple
    if traits.namedtuples_become_tuples and hasattr(kind, "_fields"):
        kind, keys = tuple, tuple(range(len(keys)))
    children = tuple(_as_tuples(child, traits) for child in structure.children)
    return Container(kind, keys, children, structure.shown)


def _same_bits(one: Array, other: Array) -> bool:
    """Return True if both hold the same dtype, shape and bits; for bytes, the same bytes."""
    if one.shape != other.shape or _dtype(one) != _dtype(other):
        return False
    if _dtype(one) == "bytes":
        return bool(one.tolist() == other.tolist())
    return one.tobytes() == other.tobytes()


def _dtype(leaf: Array) -> str:
    return "bytes" if leaf.dtype.kind in "SO" else str(leaf.dtype)
