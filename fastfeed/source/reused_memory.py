"""Refusal of a source that fills one array again and again, or changes in place what its batches
are views of: in producer threads it would change batches that wait, or are in use."""

from __future__ import annotations

import contextlib
import operator
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from fastfeed.core.batch import Batch
from fastfeed.core.structure import fields_of
from fastfeed.errors import SpecError

Array = np.ndarray[Any, Any]
Place = tuple[int, tuple[int, ...], tuple[int, ...]]  # address, shape and strides
LARGEST_NBYTES = 1 << 24  # of what is read of an array: its checksum takes 5 ms
SAMPLE_ROWS = 8  # of a batch, that its sample has, at most
NBYTES = operator.attrgetter("nbytes")
RING = 8  # batches after which a source may not fill an array again that anything still has
MOST_RING = 256  # batches that are compared with one before them, at most


class BatchWait:
    """Lives for as long as a batch waits for the loop."""

    __slots__ = ("__weakref__",)


class ReusedMemory:
    """The arrays of some batches of one producer: some are compared with those after them, the less
    often the more there were."""

    def __init__(
        self,
        lasts: Callable[[Array], weakref.ref[Array]] | None = None,
        *,
        room: Callable[[int], int] = lambda nbytes: 0,
    ) -> None:
        """`lasts` returns what lives for as long as anybody uses an array; None: its memory.
        `room` returns how many batches of so many bytes may wait."""
        self._lasts, self._room = lasts or _owner_of, room
        self._ring = RING
        self._number, self._next = 0, 1  # of batches, and of that which is remembered next
        self._since, self._wait = 0, weakref.ref(BatchWait())  # of that which is remembered
        # what owns the memory, and a checksum
        self._seen: dict[Place, tuple[weakref.ref[Array], int]] = {}

    def refuse(self, leaves: Iterable[Any], place: str) -> BatchWait | None:
        """Raise SpecError for an array in the memory of an earlier one that is still there, with
        other values: of one of the last RING batches, and of as many as may wait of one that
        does: the loop may give back an array that it has had.

        Return what has to live for as long as this batch waits; None if it is not remembered.
        """
        self._number += 1
        pairs = [(one, array_of(one)) for one in leaves] if self._looks else []
        known = [(one, array) for one, array in pairs if array is not None]
        for _, array in known if self._seen and self._refuses else ():
            owner, checksum = self._seen.pop(_place(array), (None, 0))
            if owner is not None and owner() is not None and _checksum(array) != checksum:
                raise SpecError(
                    f"{place} has the memory of an earlier batch, with other values: the source "
                    "fills one array again, or the loop changes it in place. Producer threads do "
                    "not copy, so that batches that wait or are used change, too. Yield copies, "
                    "such as array.copy(), or use processes=, which copy"
                )
        if self._number == self._next:
            # by no power of two: the buffer may fill and drain in step with these
            self._next += self._next // 2 + 1
            self._seen = {
                _place(array): (self._lasts(one), _checksum(array)) for one, array in known
            }
            room = self._room(sum(array.nbytes for _, array in known))
            self._ring, wait = min(max(RING, room + 2), MOST_RING), BatchWait()
            self._since, self._wait = self._number, weakref.ref(wait)
            return wait
        if not self._looks:
            self._seen = {}
        return None

    @property
    def _refuses(self) -> bool:
        return self._number - self._since <= RING or self._wait() is not None

    @property
    def _looks(self) -> bool:
        """True if a batch is compared or remembered."""
        return self._number == self._next or self._number <= self._since + self._ring


def arrays_in(value: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Yield the leaves of a value: of sequences, dicts, and classes with fields. `seen`: ids of the
    containers that it has entered, which may hold each other."""
    seen = set() if seen is None else seen
    parts: Iterable[Any]
    if names := fields_of(type(value)):
        parts = [getattr(value, name, None) for name in names]  # one may not be set
    elif isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, (tuple, list)):
        parts = value
    else:
        yield value
        yield from filter(_is_plain, attributes_of(value))
        return
    if id(value) not in seen:
        seen.add(id(value))
        for part in parts:
            yield from arrays_in(part, seen)


def attributes_of(value: Any) -> list[Any]:
    """Return what an object of a plain class holds, without a call of its code."""
    try:
        return list(object.__getattribute__(value, "__dict__").values())
    except AttributeError:
        return []


def sample_of(batch: Batch) -> int:
    """Return a checksum of some elements of the largest array that is a view of another; 0 if none
    is."""
    views = [leaf for leaf in batch.leaves if type(leaf) is np.ndarray and leaf.base is not None]
    leaf = max(views, key=NBYTES, default=None)
    if leaf is None or not _is_plain(leaf):
        return 0
    if leaf.ndim > 1 and leaf.flags.c_contiguous:  # of some rows, not their first elements
        leaf = leaf.reshape(len(leaf), -1)
        part = leaf[:: len(leaf) // SAMPLE_ROWS + 1, leaf.shape[1] // 18 :: leaf.shape[1] // 9 + 1]
    else:
        part = leaf[tuple(slice(None, None, size // SAMPLE_ROWS + 1) for size in leaf.shape)]
    return zlib.crc32(part.tobytes())


def refuse_changed(batch: Batch, sample: int, *, place: str) -> None:
    """Raise SpecError for a batch that is not what it was when its sample was taken."""
    if sample_of(batch) != sample:
        raise SpecError(
            f"{place} has changed while it waited: the source fills the array again that "
            "its batches are views of, or shuffles it in place, as between two passes. Producer "
            "threads do not copy. Yield copies, such as array[a:b].copy(), or use processes=, "
            "which copy"
        )


def _is_plain(leaf: Any) -> bool:
    return type(leaf) is np.ndarray and not leaf.dtype.hasobject and leaf.nbytes > 0


def array_of(leaf: Any) -> Array | None:
    """Return the memory of an array, or of a tensor of PyTorch on the CPU; None for others."""
    if type(leaf).__module__ == "torch":
        with contextlib.suppress(Exception):  # on a device, sparse, or of a dtype that NumPy lacks
            leaf = leaf.detach().numpy()
    return leaf if _is_plain(leaf) else None


def _place(leaf: Array) -> Place:
    return int(leaf.__array_interface__["data"][0]), leaf.shape, leaf.strides


def _owner_of(leaf: Array) -> weakref.ref[Array]:
    """Return the array that a view is of: it lives for as long as anything uses the memory."""
    while type(leaf.base) is np.ndarray:
        leaf = leaf.base
    return weakref.ref(leaf)


def _checksum(leaf: Array) -> int:
    """Return a checksum of an array; of a large one, of some rows along its longest axis."""
    longest = max(range(leaf.ndim), key=leaf.shape.__getitem__, default=0)
    step = -(-leaf.nbytes // LARGEST_NBYTES)
    sample = leaf if step == 1 else leaf[(slice(None),) * longest + (slice(None, None, step),)]
    return zlib.crc32(np.ascontiguousarray(sample).reshape(-1).view(np.uint8).data)
