"""Batches outside the ring of their worker, in memory that is freed with their last view."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastfeed.core.batch import Batch

Array = np.ndarray[Any, Any]
FIRST_BORROWED = 2**31  # the number of the first such batch in a token; no ring has so many slots


class BorrowAnchor:
    """Keeps the arrays of a batch alive as long as one of its views."""

    __slots__ = ("__weakref__", "leaves")

    def __init__(self, leaves: Sequence[Array]) -> None:
        self.leaves = leaves


class BorrowedBatches:
    """Batches between a relay, which adds them, and the consumer, which takes them.

    The callback of a view that is gone must not be Python code, as in ring/reader.py: it is
    `deque.append`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gone: deque[weakref.ref[BorrowAnchor]] = deque()
        self._alive: dict[int, weakref.ref[BorrowAnchor]] = {}  # by the identity of the reference
        self._nbytes = 0  # of those that are alive
        self._sizes: dict[int, int] = {}
        self._ready: dict[int, Batch] = {}
        self._next = 0

    def has_room(self, nbytes: int, limit: int) -> bool:
        """Return True if another batch of `nbytes` would keep all of them within `limit` bytes."""
        with self._lock:
            while self._gone:
                key = id(self._gone.popleft())
                self._nbytes -= self._sizes.pop(key)
                del self._alive[key]
            return self._nbytes + nbytes <= limit

    def add(self, leaves: Sequence[Array], *, rows: int) -> int:
        """Add a batch of contiguous arrays. Return its number."""
        anchor = BorrowAnchor(leaves)
        ref = weakref.ref(anchor, self._gone.append)
        views = tuple(_view(leaf, anchor) for leaf in leaves)
        nbytes = sum(leaf.nbytes for leaf in leaves)
        with self._lock:
            number = FIRST_BORROWED + self._next % FIRST_BORROWED
            self._next += 1
            self._alive[id(ref)], self._sizes[id(ref)] = ref, nbytes
            self._nbytes += nbytes
            self._ready[number] = Batch(views, rows, nbytes)
        return number

    def take(self, number: int) -> Batch:
        """Return the batch of a number, once."""
        with self._lock:
            return self._ready.pop(number)

    def clear(self) -> None:
        """Drop what nobody has taken."""
        with self._lock:
            self._ready.clear()

    @property
    def depth(self) -> tuple[int, int]:
        """Number of batches that nobody has taken yet, and their bytes."""
        with self._lock:
            ready = list(self._ready.values())
        return len(ready), sum(batch.nbytes for batch in ready)


def _view(leaf: Array, anchor: BorrowAnchor) -> Array:
    """Return the same memory as an array that may be written to, as all batches may: nobody else
    has this memory."""
    owner: Any = (ctypes.c_ubyte * leaf.nbytes).from_address(leaf.ctypes.data)
    owner.anchor = anchor
    return np.ndarray(leaf.shape, leaf.dtype, owner)
