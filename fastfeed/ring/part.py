"""A block of slots in a worker process, and the slots that it lends to the user's own code."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fastfeed.core.collate import Blank
from fastfeed.ring.layout import offsets
from fastfeed.ring.memory import Segment

Array = np.ndarray[Any, Any]


@dataclass(eq=False)
class SlotBlock:
    """The memory of `slots`, each of `slot_nbytes`."""

    segment: Segment
    slots: range
    slot_nbytes: int
    touched: set[int]

    def __post_init__(self) -> None:
        self.owner: Any = ctypes.c_ubyte * self.slot_nbytes  # stands for the memory of one slot
        self.address = ctypes.addressof(ctypes.c_ubyte.from_buffer(self.segment.map))

    def offset(self, slot: int) -> int:
        """Return where a slot begins."""
        return (slot - self.slots.start) * self.slot_nbytes


@dataclass(frozen=True)
class SlotPlan:
    """How a batch to be made lies in a slot: shape, dtype and offset of each leaf, their bytes, the
    bytes of all, and the number of records that it is laid out for (0: leaves differ)."""

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


class OwnerRef(weakref.ref[Any]):
    """A weak reference to the object that stands for a slot's memory, with its identity."""

    __slots__ = ("key",)

    key: int


class LentOut(NamedTuple):
    """A slot lent to the user's own code: the object that stands for its memory, which begins at
    `address`, the plan of its content, and the identities of the arrays that were lent."""

    slot: int
    owner: OwnerRef
    address: int
    plan: SlotPlan
    given: tuple[int, ...]

    @property
    def room(self) -> int:
        """Number of records that the slot is laid out for."""
        return self.plan.room

    def holds(self, leaves: Sequence[Array]) -> bool:
        """Return True if every leaf lies where it was planned, with records of the planned size."""
        plan = self.plan
        # nothing else has this memory as its base
        if tuple(map(id, leaves)) == self.given:
            return plan.room > 0
        return len(leaves) == len(plan.sizes) and all(
            leaf.flags.c_contiguous
            and leaf.nbytes * plan.room == size * len(leaf)
            and leaf.__array_interface__["data"][0] == self.address + at
            for leaf, size, (_, _, at) in zip(leaves, plan.sizes, plan.leaves, strict=True)
        )
