"""Comparison of the streams of a callable without `worker`: copies of one stream are refused.

Each producer calls the function, and without `worker` most functions return the same data to each
of them. Copies give equal batches, one after another. Only some items are compared: the first ones,
and a few where their number has doubled.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import threading
from itertools import takewhile
from typing import Any

import numpy as np

from fastfeed.core.structure import leaves_of, structure_of
from fastfeed.errors import OptionError

DIGEST_NBYTES = 8
COMPARED_ELEMENTS = 4096  # elements of an array that are compared
FIRST_ITEMS = 16  # so many first items of a stream are compared
# Consecutive items that are equal in two streams, and all different: fewer may be equal by chance.
# At the beginning the later stream is held back for so long, with two items.
FIRST, LATER = 3, 4

WAYS_OUT = (
    "the data would be delivered several times. Choose one of three: give the callable an argument "
    "`worker` and yield the share worker.index of worker.count; pass an iterable and do the slow "
    "part in transform=; or let the callable take `worker` and not use it, if each producer may "
    "deliver a full copy"
)


class StreamComparison:
    """The digests of items of all streams. What `suspects` have made must not be delivered yet:
    they have begun like another stream."""

    def __init__(self) -> None:
        self.suspects: set[int] = set()
        self._digests: dict[int, dict[int, int]] = {}  # by stream and item
        self._lock = threading.Lock()

    def add(self, stream: int, item: int, *, digest: int) -> None:
        """Note an item, before it is delivered. Raise OptionError if two streams are copies."""
        with self._lock:
            own = self._digests.setdefault(stream, {})
            if item in own:  # a worker that was restarted makes it again
                return
            # made-up data: an item that a stream repeats says nothing
            own[item] = unique_digest() if digest in own.values() else digest
            for other, others in self._digests.items():
                for at in [n for n, known in others.items() if known == own[item]]:
                    run = [own.get(item - n, 0) == others.get(at - n, 1) for n in range(LATER)]
                    begin = item == at == FIRST - 1 and all(run[:FIRST])
                    if other != stream and (begin or all(run)):
                        raise OptionError(
                            f"the callable's streams for the producers {min(stream, other)} and "
                            f"{max(stream, other)} give equal batches, one after another: each "
                            f"producer reads a copy, and {WAYS_OUT}"
                        )
            for one in {stream, *self.suspects}:
                earlier = takewhile(one.__ne__, self._digests)
                alike = any(self._begin_alike(one, other) for other in earlier)
                (self.suspects.add if alike else self.suspects.discard)(one)

    def _begin_alike(self, one: int, other: int) -> bool:
        known = zip(self._digests[one].values(), self._digests[other].values(), strict=False)
        return all(digest == another for digest, another in known)


def is_compared(item: int) -> bool:
    """Return True if the item of this number is compared with those of other streams."""
    return item < FIRST_ITEMS or item - (1 << item.bit_length() - 1) < LATER


def digest_of(item: Any) -> int:
    """Return a 64-bit digest of an item, of a sample of large arrays; a new number for one that
    cannot be read."""
    found = hashlib.blake2b(digest_size=DIGEST_NBYTES)
    try:
        for record in item if isinstance(item, list) else [item]:
            for leaf in leaves_of(structure_of(record), record) or [record]:
                array = np.asarray(leaf)
                sample = array.reshape(-1)[:: array.size // COMPARED_ELEMENTS | 1]
                found.update(pickle.dumps((array.shape, sample), pickle.HIGHEST_PROTOCOL))
    except Exception:  # reading and pickling run code of the user's classes
        return unique_digest()
    return int.from_bytes(found.digest(), "little", signed=True)


def unique_digest() -> int:
    """Return a digest that no item has."""
    return int.from_bytes(os.urandom(DIGEST_NBYTES), "little", signed=True)
