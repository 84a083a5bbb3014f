"""Refusal of a source that fills one array again and again: in producer threads it would change
batches that are in use. `Batch.refuse_changed` finds those that waited meanwhile."""

from __future__ import annotations

import contextlib
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from types import MemberDescriptorType
from typing import Any

import numpy as np

from fastfeed.core.structure import fields_of
from fastfeed.errors import SpecError

Array = np.ndarray[Any, Any]
Place = tuple[int, tuple[int, ...], tuple[int, ...]]  # address, shape of a row, and strides
LARGEST_NBYTES = 1 << 24  # of what is read of an array: its checksum takes 5 ms
RING = 8  # batches after which a source may not fill an array again that anything still has


class ReusedMemory:
    """The arrays of one batch of a producer, which are compared with those of the next RING; then
    those of a later one, the less often the more there were."""

    def __init__(self, lasts: Callable[[Array], weakref.ref[Array]] | None = None) -> None:
        """`lasts` returns what lives for as long as anybody uses an array; None: its memory."""
        self._lasts = lasts or _owner_of
        # of batches, of the last that is compared, and of that which is remembered next
        self._number, self._last, self._next = 0, 0, 1
        self._seen: dict[Place, _Remembered] = {}

    def refuse(self, leaves: Iterable[Any], place: str) -> None:
        """Raise SpecError for an array in the memory of an earlier one that is still there, with
        other values. Whether its batch still waits is not asked: the loop may have it."""
        self._number += 1
        if self._number == self._next:
            self._last = self._number + RING
            self._next = self._last + 1 + self._number // 2
            known = [(leaf, one) for leaf in leaves if (one := array_of(leaf)) is not None]
            self._seen = {_place(one): _Remembered(one, self._lasts(leaf)) for leaf, one in known}
        elif self._number <= self._last:
            for one in map(array_of, leaves):
                before = None if one is None else self._seen.pop(_place(one), None)
                if one is not None and before is not None and before.has_changed(one):
                    raise SpecError(
                        f"{place} has the memory of an earlier batch, with other values: the "
                        "source fills one array again, or the loop changes it in place. Producer "
                        "threads do not copy, so that batches that wait or are used change, too. "
                        "Yield copies, such as array.copy(), or use processes=, which copy"
                    )


class _Remembered:
    """An array of an earlier batch: what owns its memory, and checksums of all and of a row."""

    def __init__(self, array: Array, owner: weakref.ref[Array]) -> None:
        self._owner, self._shape = owner, array.shape
        self._all, self._row = _checksum(array), _checksum(np.atleast_1d(array)[:1])

    def has_changed(self, now: Array) -> bool:
        """Return True if the array is still there, with other values, as `now` shows: an array in
        its place, maybe of more rows or fewer."""
        if self._owner() is None:
            return False
        same = now.shape == self._shape
        return _checksum(now) != self._all if same else _checksum(now[:1]) != self._row


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
    """Return what an object of a plain class holds, without a call of its code: the values of its
    dict, and of the slots that are set."""
    found: list[Any] = []
    with contextlib.suppress(AttributeError):
        found += object.__getattribute__(value, "__dict__").values()
    for own in map(vars, type(value).__mro__):
        # What is made anew by code of its own, such as a path, notes its text in a slot.
        for slot in own.values() if "__slots__" in own and "__reduce__" not in own else ():
            with contextlib.suppress(AttributeError):
                if type(slot) is MemberDescriptorType:
                    found.append(slot.__get__(value))
    return found


def is_writable(value: Any) -> bool:
    """Return True for memory that its owner may fill again: an array, a row of one, or another
    buffer that is not read-only. An np.memmap that is only read is none."""
    if isinstance(value, (np.ndarray, np.void)):
        return not (isinstance(value, np.memmap) and value.mode == "r")
    try:
        return not memoryview(value).readonly
    except Exception:  # it is no buffer, or one that was released
        return False


def _is_plain(leaf: Any) -> bool:
    """Return True for an array with elements, which are no objects but bytes and text."""
    if type(leaf) is not np.ndarray or not leaf.size:
        return False
    return not leaf.dtype.hasobject or all(type(one) in (bytes, str) for one in leaf.flat)


def array_of(leaf: Any) -> Array | None:
    """Return the memory of an array, of a memoryview, or of a tensor of PyTorch on the CPU; None
    for others."""
    with contextlib.suppress(Exception):  # on a device, sparse, or of a dtype that NumPy lacks
        if type(leaf).__module__ == "torch":
            leaf = leaf.detach().numpy()
        elif type(leaf) is memoryview:
            leaf = np.frombuffer(leaf, np.uint8)
        elif isinstance(leaf, np.ndarray) and is_writable(leaf):
            leaf = np.asarray(leaf)
    return leaf if _is_plain(leaf) else None


def _place(leaf: Array) -> Place:
    return int(leaf.__array_interface__["data"][0]), leaf.shape[1:], leaf.strides


def _owner_of(leaf: Array) -> weakref.ref[Array]:
    """Return the array that a view is of: it lives for as long as anything uses the memory."""
    while type(leaf.base) is np.ndarray:
        leaf = leaf.base
    return weakref.ref(leaf)


def _checksum(leaf: Array) -> int:
    """Return a checksum of an array; of a large one, of some rows along its longest axis."""
    if leaf.dtype.hasobject:
        return hash(tuple(leaf.flat))
    longest = max(range(leaf.ndim), key=leaf.shape.__getitem__, default=0)
    step = -(-leaf.nbytes // LARGEST_NBYTES)
    sample = leaf if step == 1 else leaf[(slice(None),) * longest + (slice(None, None, step),)]
    return zlib.crc32(np.ascontiguousarray(sample).reshape(-1).view(np.uint8).data)
