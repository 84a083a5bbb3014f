"""Block of slots, and the slots of it that a worker process lends to the user's code."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from fastfeed.core.collate import Blank
from fastfeed.ring.layout import offsets
from fastfeed.ring.memory import Segment

Array = np.ndarray[Any, Any]
MAX_KEPT = 1024  # plans and views that are kept, of batches whose sizes vary


@dataclass(eq=False)
class SlotBlock:
    """Memory of the slots `slots`, each of `slot_nbytes`."""

    segment: Segment
    slots: range
    slot_nbytes: int
    touched: set[int] = field(default_factory=set)  # slots whose pages are allocated
    # arrays in the slots, by slot and records
    views: dict[tuple[int, int], list[Array]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # ctypes type that stands for the memory of one slot
        self.owner: Any = ctypes.c_ubyte * self.slot_nbytes
        self.address = ctypes.addressof(ctypes.c_ubyte.from_buffer(self.segment.map))

    def offset(self, slot: int) -> int:
        """Return the offset of a slot in the block."""
        return (slot - self.slots.start) * self.slot_nbytes


@dataclass(frozen=True)
class SlotPlan:
    """Layout of a batch in a slot before the batch exists: shape, dtype and offset of each leaf,
    their sizes in bytes, and the total. `room` is the number of records it is laid out for, or 0 if
    the leaves do not all have the same number."""

    leaves: tuple[tuple[tuple[int, ...], np.dtype[Any], int], ...]
    sizes: tuple[int, ...]
    nbytes: int
    room: int

    @classmethod
    def of(cls, blanks: Sequence[Blank]) -> SlotPlan:
        """Return the plan for arrays of these shapes and dtypes."""
        sizes = tuple(math.prod(shape) * dtype.itemsize for shape, dtype in blanks)
        places, nbytes = offsets(sizes)
        rows = {shape[0] if shape else 0 for shape, _ in blanks}
        leaves = tuple(
            (shape, dtype, at) for (shape, dtype), at in zip(blanks, places, strict=True)
        )
        return cls(leaves, sizes, nbytes, rows.pop() if len(rows) == 1 else 0)

    def beginning(self, rows: int) -> SlotPlan:
        """Return the same plan for a slot in which only the first `rows` records are filled."""
        leaves = tuple(((rows, *shape[1:]), dtype, at) for shape, dtype, at in self.leaves)
        return replace(self, leaves=leaves)

    def arrays(self, memory: Any, offset: int = 0) -> list[Array]:
        """Return the arrays in the memory of a slot, which begins at `offset`."""
        return [np.ndarray(shape, dtype, memory, offset + at) for shape, dtype, at in self.leaves]


class OwnerRef(weakref.ref[Any]):
    """Weak reference to the ctypes array that stands for a slot's memory, and its identity."""

    __slots__ = ("key",)

    key: int


class LentSlot(NamedTuple):
    """Slot that the user's code fills: the owner of its memory, which begins at `address`, the plan
    of its content, and the identities of the arrays that were handed out."""

    slot: int
    owner: OwnerRef
    address: int
    plan: SlotPlan
    array_ids: tuple[int, ...]

    def holds(self, leaves: Sequence[Array]) -> bool:
        """Return True if every leaf lies in its place, with records of the size it was laid out
        for."""
        plan = self.plan
        # Only these arrays have this memory as their base, so equal ids mean the same arrays.
        if tuple(map(id, leaves)) == self.array_ids:
            return plan.room > 0
        return len(leaves) == len(plan.sizes) and all(
            leaf.flags.c_contiguous
            and leaf.nbytes * plan.room == size * len(leaf)
            and leaf.__array_interface__["data"][0] == self.address + at
            for leaf, size, (_, _, at) in zip(leaves, plan.sizes, plan.leaves, strict=True)
        )
