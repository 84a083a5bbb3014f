"""The records that the battery feeds, whose values follow from their numbers, and the comparison of
what a sink gives with them: functions that describe a difference, or return ""."""

from __future__ import annotations

import os
import select
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
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
PADDING = -1
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
    """`count` records by index, with a leaf of each of `dtypes`."""

    count: int
    dtypes: Sequence[str] = ("int64",)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Element:
        rng = np.random.default_rng(index)
        leaves = {dtype: _leaf(rng, dtype) for dtype in self.dtypes}
        rest = [np.full((2,), index % 256, np.uint8), np.float32(-0.0)]
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


@dataclass(frozen=True)
class RaggedRecords:
    """`count` records by index, with a varying number of values."""

    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return np.int64(index), np.full(1 + index % 5, index, np.int32)


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


def numbered(index: int) -> Array:
    """Return a batch that is filled with its own number."""
    return np.full((BATCH_RECORDS, 3), index, np.int32)


@dataclass(frozen=True)
class GatedBatches:
    """`count` numbered batches by index; each is made once a ProductionGate permits it."""

    count: int
    folder: str
    limit_s: float

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        permits = os.open(f"{self.folder}/permits", os.O_RDONLY | os.O_NONBLOCK)
        made = os.open(f"{self.folder}/made", os.O_WRONLY | os.O_NONBLOCK)
        try:
            if not select.select([permits], [], [], self.limit_s)[0] or not os.read(permits, 1):
                raise SourceError(f"no permit for batch {index} within {self.limit_s} s")
            os.write(made, b".")
        finally:
            os.close(permits)
            os.close(made)
        return (numbered(index),)


class ProductionGate:
    """Permits GatedBatches one by one, and counts them.

    It uses named pipes, which threads and processes can open alike, and on which a wait needs no
    polling.
    """

    def __init__(self, folder: str, limit_s: float) -> None:
        self._limit_s = limit_s
        for name in ("permits", "made"):
            os.mkfifo(Path(folder) / name)
        self._permits, self._made = (
            os.open(f"{folder}/{name}", os.O_RDWR) for name in ("permits", "made")
        )

    def permit(self, batches: int) -> None:
        """Permit so many more batches."""
        os.write(self._permits, b"." * batches)

    def wait_made(self, batches: int) -> None:
        """Wait until so many more batches are made; raise TimeoutError."""
        for _ in range(batches):
            if not select.select([self._made], [], [], self._limit_s)[0]:
                raise TimeoutError(f"a permitted batch was not made within {self._limit_s} s")
            os.read(self._made, 1)

    def close(self) -> None:
        """Close the pipes; no further batch is made."""
        os.close(self._permits)
        os.close(self._made)


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

    @property
    def number(self) -> int:
        """The number that fills a numbered batch, or -1."""
        return self.ids[0] if len(set(self.ids)) == 1 else -1

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
    """Return what is wrong with an element of these records, by promise; "" for what is right.

    The values are compared after a cast where the dtypes differ.
    """
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
        if _dtype(leaf) != _dtype(want):
            differs = f"{path} has dtype {_dtype(leaf)} instead of {_dtype(want)}"
            found["dtypes"] = found["dtypes"] or differs
        if leaf.shape != want.shape:
            differs = f"{path} has the shape {leaf.shape} instead of {want.shape}"
        elif not _equal(leaf, want):
            differs = f"{path} is\n{leaf}\ninstead of\n{want}"
        else:
            continue
        found["values"] = found["values"] or differs
    return found


def wrong_padding(elements: Sequence[ReceivedElement]) -> str:
    """Describe the first element of a RaggedRecords source with wrong or wrongly padded values."""
    for number, element in enumerate(elements):
        lengths = [1 + index % 5 for index in element.ids]
        wanted = np.full((len(lengths), max(lengths, default=0)), PADDING, np.int32)
        for row, index, length in zip(wanted, element.ids, lengths, strict=True):
            row[:length] = index
        if element.leaves[1].tolist() != wanted.tolist():
            found = element.leaves[1]
            return f"element {number} has the values\n{found}\ninstead of\n{wanted}"
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


def wrong_order(ids: Sequence[int]) -> str:
    """Describe the first record that came after a later one."""
    for before, after in pairwise(dict.fromkeys(ids)):
        if after < before:
            return f"record {after} came after record {before}"
    return ""


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
        leaf = np.array(column, object if isinstance(column[0], bytes) else None)
        with np.errstate(all="ignore"):
            leaves.append(leaf.astype(traits.casts.get(str(leaf.dtype), leaf.dtype)))
    return ReceivedElement(_as_tuples(structure, traits), tuple(leaves))


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


def _equal(leaf: Array, want: Array) -> bool:
    """Compare bit for bit, after a cast if the dtypes differ."""
    try:
        with np.errstate(all="ignore"):
            return _same_bits(
                leaf, want if _dtype(leaf) == _dtype(want) else want.astype(leaf.dtype)
            )
    except (TypeError, ValueError):
        return False


def _dtype(leaf: Array) -> str:
    return "bytes" if leaf.dtype.kind in "SO" else str(leaf.dtype)
