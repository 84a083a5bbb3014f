"""Comparison of the streams of a callable without `worker`: copies of one stream are refused.

Each producer calls the function, and a finite function returns a copy of the same data to each of
them. Copies begin with equal records, which is seen before the first of them is delivered twice.
"""

from __future__ import annotations

import dis
import hashlib
import itertools
import pickle
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fastfeed.core.structure import leaves_of, structure_of
from fastfeed.errors import OptionError

DIGEST_NBYTES = 8
# Fewer records may be equal by chance: two streams that draw from ten records begin with the same
# four once in 10,000 times.
COMPARED_RECORDS = 4
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


def beginning_of(items: Iterator[Any]) -> list[Any]:
    """Return the first items: as many as have COMPARED_RECORDS records."""
    first: list[Any] = []
    records = 0
    while records < COMPARED_RECORDS:
        item = next(items, StopIteration)
        if item is StopIteration:
            break
        first.append(item)
        records += max(1, _rows(item))
    return first


def digest_of(items: Sequence[Any]) -> int | None:
    """Return a 64-bit digest of the content of items; None if it cannot be pickled, and for equal
    records, as in made-up data: they say nothing."""
    try:
        if all(map(_is_uniform, items)) and len({pickle.dumps(item) for item in items}) <= 1:
            return None
        content = pickle.dumps(items, pickle.HIGHEST_PROTOCOL)
    except Exception:  # comparing and pickling run code of the user's classes
        return None
    digest = hashlib.blake2b(content, digest_size=DIGEST_NBYTES).digest()
    return int.from_bytes(digest, "little", signed=True)


def _leaves(item: Any) -> list[Any]:
    return leaves_of(structure_of(item), item) or []


def _rows(item: Any) -> int:
    """Return the records of an item: those of a list, or the leading dimension of its arrays."""
    if isinstance(item, list):
        return len(item)
    shapes = [np.shape(leaf) for leaf in _leaves(item)[:1]]
    return shapes[0][0] if shapes and shapes[0] else 1


def _is_uniform(item: Any) -> bool:
    """Return True if all records of an item are equal."""
    if isinstance(item, list):
        return all(pickle.dumps(record) == pickle.dumps(item[0]) for record in item)
    arrays = map(np.asarray, _leaves(item))
    return all(bool((array == array[:1]).all()) for array in arrays if array.ndim)
