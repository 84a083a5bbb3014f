"""Comparison of a sink's output with its input: pure functions that describe an error, or ""."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from fastfeed.core.structure import (
    Container,
    Structure,
    describe,
    leaves_of,
    paths_of,
    structure_of,
)
from fastfeed.testing.promises import SinkTraits
from fastfeed.testing.records import NumberedRecords, padded_values

Array = np.ndarray[Any, Any]
MAX_SHOWN = 8  # numbers in a text


@dataclass(frozen=True)
class ReceivedElement:
    """A copy of one element: later changes of the sink's memory do not affect it."""

    structure: Structure
    leaves: tuple[Array, ...]

    @property
    def by_path(self) -> dict[str, Array]:
        """The leaves by their paths."""
        return dict(zip(paths_of(self.structure), self.leaves, strict=True))

    @property
    def ids(self) -> list[int]:
        """The numbers of its records, from the first leaf; empty if that holds something else."""
        try:
            return [int(i) for i in self.leaves[0].reshape(-1)]
        except (IndexError, TypeError, ValueError, OverflowError):
            return []

    def same(self, other: ReceivedElement) -> bool:
        """Return True if both are equal bit for bit."""
        return self.structure == other.structure and all(map(same_bits, self.leaves, other.leaves))


def received(element: Any, to_numpy: Callable[[Any], Any] | None) -> ReceivedElement:
    """Return a copy of an element's content."""
    element = element if to_numpy is None else to_numpy(element)
    structure = structure_of(element)
    found = leaves_of(structure, element) or []
    return ReceivedElement(structure, tuple(np.array(np.asarray(leaf)) for leaf in found))


def expected(
    ids: Sequence[int], records: NumberedRecords, *, traits: SinkTraits
) -> ReceivedElement:
    """Return the expected element of these records, for a sink with these traits."""
    each = [records[i] for i in ids]
    structure = structure_of(each[0])
    rows = [leaves_of(structure, record) or [] for record in each]
    return ReceivedElement(
        as_tuples(structure, traits),
        tuple(_converted(_stack(column), traits) for column in zip(*rows, strict=True)),
    )


def as_tuples(structure: Structure, traits: SinkTraits) -> Structure:
    """Return the structure with tuples where the sink converts containers to tuples."""
    if structure is None:
        return None
    kind, keys = structure.kind, structure.keys
    if traits.lists_become_tuples and issubclass(kind, list):
        kind = tuple
    if traits.namedtuples_become_tuples and hasattr(kind, "_fields"):
        kind, keys = tuple, tuple(range(len(keys)))
    children = tuple(as_tuples(child, traits) for child in structure.children)
    return Container(kind, keys, children, structure.shown)


def wrong_structure(elements: Sequence[ReceivedElement], wanted: Structure) -> str:
    """Describe the first element with other containers; the order of dict keys does not count."""
    for number, element in enumerate(elements):
        if element.structure != wanted:
            return (
                f"element {number} is {describe(element.structure)} instead of {describe(wanted)}"
            )
    return ""


def wrong_dtypes(elements: Sequence[ReceivedElement], wanted: ReceivedElement) -> str:
    """Describe the first leaf with another dtype; all forms of bytes are the same."""
    for number, element in enumerate(elements):
        for path, leaf in element.by_path.items():
            want = wanted.by_path.get(path, leaf)
            if _dtype(leaf) != _dtype(want):
                return (
                    f"{path} of element {number} has dtype {_dtype(leaf)} instead of {_dtype(want)}"
                )
    return ""


def wrong_values(
    elements: Sequence[ReceivedElement], records: NumberedRecords, *, traits: SinkTraits
) -> str:
    """Describe the first leaf that does not hold the values of its records."""
    for number, element in enumerate(elements):
        ids = [i for i in element.ids if 0 <= i < len(records)]
        if len(ids) != len(element.ids) or not ids:
            return (
                f"element {number} has the records {shortened(element.ids)}, which are not in the "
                "source"
            )
        wanted = expected(ids, records, traits=traits).by_path
        for path, leaf in element.by_path.items():
            want = wanted.get(path, leaf)
            if leaf.shape != want.shape:
                return (
                    f"{path} of element {number} has the shape {leaf.shape} instead of {want.shape}"
                )
            if not _equal(leaf, want):
                return f"{path} of element {number} is\n{leaf}\ninstead of\n{want}"
    return ""


def wrong_padding(elements: Sequence[ReceivedElement]) -> str:
    """Describe the first element of a RaggedRecords source with wrong or wrongly padded values."""
    for number, element in enumerate(elements):
        wanted, found = padded_values(element.ids), element.leaves[1]
        if found.tolist() != wanted.tolist():
            return f"element {number} has the values\n{found}\ninstead of\n{wanted}"
    return ""


def wrong_count(ids: Sequence[int], wanted: Iterable[int]) -> str:
    """Describe the records that are missing, repeated or unknown."""
    counts, wanted = Counter(ids), set(wanted)
    missing = sorted(wanted - set(counts))
    more = sorted(i for i, count in counts.items() if count > 1)
    strange = sorted(set(counts) - wanted)
    parts = (("missing", missing), ("more than once", more), ("unknown", strange))
    return "; ".join(
        f"{len(found)} records {name}: {shortened(found)}" for name, found in parts if found
    )


def wrong_order(ids: Sequence[int]) -> str:
    """Describe the first record that came after a later one."""
    once = list(dict.fromkeys(ids))
    for before, after in pairwise(once):
        if after < before:
            return f"record {after} came after record {before}"
    return ""


def shortened(numbers: Sequence[int]) -> str:
    """Return the first few numbers as text."""
    text = ", ".join(map(str, numbers[:MAX_SHOWN]))
    return text + ", ..." if len(numbers) > MAX_SHOWN else text


def same_bits(one: Array, other: Array) -> bool:
    """Return True if both hold the same dtype, shape and bits; for bytes, the same bytes."""
    if one.shape != other.shape or _dtype(one) != _dtype(other):
        return False
    return (
        one.tolist() == other.tolist()
        if _dtype(one) == "bytes"
        else one.tobytes() == other.tobytes()
    )


def _equal(leaf: Array, want: Array) -> bool:
    """Compare bit for bit, after a cast if the dtypes differ: `wrong_dtypes` reports that."""
    if _dtype(leaf) == _dtype(want):
        return same_bits(leaf, want)
    try:
        with np.errstate(all="ignore"):
            return same_bits(leaf, want.astype(leaf.dtype))
    except (TypeError, ValueError):
        return False


def _stack(column: Sequence[Any]) -> Array:
    if isinstance(column[0], bytes):
        return np.array(column, object)
    return np.stack([np.asarray(value) for value in column])


def _converted(leaf: Array, traits: SinkTraits) -> Array:
    with np.errstate(all="ignore"):
        return (
            leaf.astype(traits.casts[str(leaf.dtype)]) if str(leaf.dtype) in traits.casts else leaf
        )


def _dtype(leaf: Array) -> str:
    return "bytes" if leaf.dtype.kind in "SO" else str(leaf.dtype)
