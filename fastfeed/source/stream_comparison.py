"""Comparison of the streams of a callable without `worker`: copies of one stream are refused.

Each producer calls the function, and a finite function returns a copy of the same data to each of
them. Copies begin with equal records, which is seen before the first of them is delivered twice.
Copies that are shuffled differently are refused when the first of them ends.
"""

from __future__ import annotations

import dis
import hashlib
import itertools
import pickle
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from fastfeed.core.structure import leaves_of, rebuild, structure_of
from fastfeed.errors import OptionError

DIGEST_NBYTES = 8
# Fewer records may be equal by chance: two streams that draw from ten records begin with the same
# four once in 10,000 times.
COMPARED_RECORDS = 4
# Items that are held back until they are compared, and the last one that is compared.
HELD_ITEMS, COMPARED_ITEMS = 16, 64
FINITE_TYPES: tuple[type, ...] = (list, type(iter([])), type(iter(())))
ENDLESS_TYPES = (itertools.count, itertools.cycle, itertools.repeat, type(iter(int, 1)))

WAYS_OUT = (
    "the data would be delivered several times. Choose one of three: give the callable an argument "
    "`worker` and yield the share worker.index of worker.count; pass an iterable and do the slow "
    "part in transform=; or set repeat_per_producer=True if each producer may deliver a full copy"
)


class StreamComparison:
    """The digests of the first records of the streams of one feed."""

    def __init__(self) -> None:
        self._streams: dict[int, int] = {}  # by digest
        self._lock = threading.Lock()

    def add(self, stream: int, digest: int) -> None:
        """Note how a stream begins, before its first item is delivered. Raise OptionError if
        another stream began with equal records."""
        with self._lock:
            other = self._streams.setdefault(digest, stream)
        if other != stream:
            raise OptionError(
                f"the callable's streams for the producers {other} and {stream} begin with equal "
                f"records: each producer reads a copy, and {WAYS_OUT}"
            )


def is_endless(stream: Any) -> bool:
    """Return True for an iterator that surely has no end: a generator whose code has no return, as
    after `while True:`."""
    code = getattr(stream, "gi_code", None)
    if code is None:
        return isinstance(stream, ENDLESS_TYPES)
    return not any(i.opname in ("RETURN_VALUE", "RETURN_CONST") for i in dis.get_instructions(code))


def is_finite(stream: Any) -> bool:
    """Return True for a list of items, and for its iterator."""
    return isinstance(stream, FINITE_TYPES)


def compared(items: Iterator[Any], compare: Callable[[int], None]) -> Iterator[Any]:
    """Yield the items; before those by which the stream is recognized, pass their digest to
    `compare`, which raises OptionError for a copy."""
    beginning = StreamBeginning()
    held: list[Any] = []
    window = HELD_ITEMS
    for item in islice(items, COMPARED_ITEMS):
        beginning.add(item)
        held.append(item)
        full = len(held) == window
        if beginning.known or (full and beginning.varies):
            compare(beginning.digest)
        if beginning.known or beginning.opaque or (full and beginning.varies):
            break
        if not full:
            held[-1] = _copied(item)  # the next one may be made in the same arrays
            continue
        yield from held
        held, window = [], 1
    else:
        if held:  # the stream has ended
            compare(beginning.digest)
    yield from held
    yield from items


class StreamBeginning:
    """The first items of a stream, until they hold COMPARED_RECORDS records that differ from the
    record before them: equal records, as in made-up data, say little."""

    def __init__(self) -> None:
        self.opaque = False  # cannot be pickled
        self._records = 0  # that differ
        self._last = b""
        self._content = hashlib.blake2b(digest_size=DIGEST_NBYTES)

    @property
    def known(self) -> bool:
        """True if the records tell this stream from others."""
        return self._records >= COMPARED_RECORDS

    @property
    def varies(self) -> bool:
        """True unless all records are equal."""
        return self._records > 1

    @property
    def digest(self) -> int:
        """A digest of the content, in 64 bits."""
        return int.from_bytes(self._content.digest(), "little", signed=True)

    def add(self, item: Any) -> None:
        """Add the next item."""
        try:
            self._content.update(pickle.dumps(item, pickle.HIGHEST_PROTOCOL))
            for record in _records_of(item):
                content = pickle.dumps(record, pickle.HIGHEST_PROTOCOL)
                self._records += content != self._last
                self._last = content
                if self.known:
                    return
        except Exception:  # reading and pickling run code of the user's classes
            self.opaque = True


def _leaves(item: Any) -> list[Any]:
    return leaves_of(structure_of(item), item) or []


def _records_of(item: Any) -> Iterator[Any]:
    """Yield the records of an item: those of a list, or the rows of its arrays."""
    if isinstance(item, list):
        yield from item
        return
    arrays = [np.asarray(leaf) for leaf in _leaves(item)]
    if not arrays or not all(array.ndim for array in arrays):
        yield item
        return
    for row in range(min(map(len, arrays))):
        yield [array[row].tobytes() for array in arrays]


def _copied(item: Any) -> Any:
    """Return an item with arrays of its own."""
    if isinstance(item, list):
        return [_copied(record) for record in item]
    structure = structure_of(item)
    leaves = [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in _leaves(item)]
    return rebuild(structure, leaves)
