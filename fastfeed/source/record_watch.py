"""Refusal of records that change after they came, of one object that is filled again for each of
them; and a warning of those of a list that a transform changes in place."""

from __future__ import annotations

import array
import warnings
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from fastfeed.core.structure import leaves_of, structure_of
from fastfeed.errors import FeedWarning, SpecError
from fastfeed.source.reused_memory import array_of, arrays_in, attributes_of, is_writable
from fastfeed.source.stream_comparison import COMPARED_ELEMENTS

BUFFERS = (bytearray, memoryview, array.array)
PLAIN_LEAVES = (np.ndarray, np.generic, bool, int, float, complex, str, bytes, *BUFFERS)
FIRST_RECORDS = 3  # of a batch, that are compared
FIRST_PARTS = 8  # of a list, that say what it holds


class RecordWatch:
    """The first records of a batch: they must be the same when the next one has come."""

    def __init__(self) -> None:
        self._first: list[tuple[Any, int | None]] = []
        self._held: tuple[Any, int | None] = (None, None)

    def hold(self, record: Any) -> None:
        """Note the arrays of a record that the source keeps, before a transform gets it."""
        if len(self._first) < FIRST_RECORDS:
            arrays = [one for one in arrays_in(record) if type(one) is np.ndarray]
            self._held = arrays, _digest(arrays)

    def add(self, record: Any, place: str) -> None:
        """Raise SpecError if a record before has changed meanwhile."""
        if len(self._first) == FIRST_RECORDS:
            return
        if _has_changed(*self._held):
            warnings.warn(
                f"{place}: transform= changes the record in place, which the source holds, so that "
                "the next epoch gets it changed: let it change a copy, such as array.copy()",
                FeedWarning,
                stacklevel=2,
            )
        self.compare(f"{place}: a record before it")
        self._first.append((record, _digest(record)))

    def compare(self, what: str) -> None:
        """Raise SpecError if one of these records, which `what` says, has changed since it came."""
        for before in self._first:
            if _has_changed(*before):
                raise SpecError(
                    f"{what} has changed since it came. The source, or transform=, fills one "
                    "object again for each record, or a few of them in turn, and a batch would "
                    "hold its last values many times: make a new object for each, or copies, such "
                    "as array.copy() or dict(record)"
                )


class RefilledItem:
    """An item of an iterable, and what the next one must not be: the same object, with other
    values, while another thread works on it."""

    def __init__(self) -> None:
        self._held: tuple[Any, int | None] = (None, None)

    def refuse(self, item: Any, number: int) -> None:
        """Raise SpecError where item `number` is the one before, with other values."""
        held, self._held = self._held, (None, None)
        if item is held[0] and _has_changed(*held):
            raise SpecError(
                f"batch {number} is the object of the batch before, with other values: the source "
                "fills one object again, and several threads work on it at once. Make a new object "
                "for each, such as dict(record), or use threads=1"
            )
        # arrays may be of a pool, which waits until nobody has them
        if is_watched(number) and all(array_of(one) is None for one in arrays_in(item)):
            self._held = item, _digest(item)


def _has_changed(record: Any, digest: int | None) -> bool:
    return digest is not None and _digest(record) not in (None, digest)


def _digest(record: Any) -> int | None:
    """Return a checksum of what is plain in a record; None for what cannot be read. An object of
    another class, such as a video, may take long to read."""
    found = 0
    try:
        leaves = leaves_of(structure_of(record), record) or [record]
        parts = [one for leaf in leaves for one in (leaf, *attributes_of(leaf))]
        for part in parts:
            if _is_plain(part):
                one = np.asarray(part)
            elif is_writable(part):  # such as a structure of ctypes
                one = np.frombuffer(part, np.uint8)
            else:
                continue
            sample = one.reshape(-1)[:: one.size // COMPARED_ELEMENTS | 1]
            found = zlib.crc32(sample.tobytes(), found)
    except Exception:  # of the user's classes
        return None
    return found


def _is_plain(leaf: Any) -> bool:
    if type(leaf) in (list, tuple):
        return all(map(_is_plain, leaf[:FIRST_PARTS]))
    return isinstance(leaf, PLAIN_LEAVES) or type(leaf).__module__ == "torch"


def watched(records: Iterable[Any], place: str) -> Iterator[Any]:
    """Yield records. Raise SpecError for one that changes the one before."""
    watch = RecordWatch()
    for record in records:
        watch.add(record, place)
        yield record
    watch.compare(f"{place}: a record of this batch")


def is_watched(number: int) -> bool:
    """Return True for the numbers of the batches whose records are watched: few, and all kinds."""
    return number & (number - 1) == 0
