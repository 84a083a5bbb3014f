"""A stretch of slots in a worker process, and what it lends of them to the user's own code."""

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
    """The memory of the slots `slots`, each of `slot_nbytes`."""

    segment: Segment
    slots: range
    slot_nbytes: int
    touched: set[int]

    def __post_init__(self) -> None:
        self.owner: Any = ctypes.c_ubyte * self.slot_nbytes  # stands for the memory of one slot
        self.address = ctypes.addressof(ctypes.c_ubyte.from_buffer(self.segment.map))

    def offset(self, slot: int) -> int:
        """Where a slot begins."""
        return (slot - self.slots.start) * self.slot_nbytes


@dataclass(frozen=True)
class SlotPlan:
    """How a batch that is to be made lies in a slot: shape, dtype and offset of each leaf, their
    bytes, the bytes of all, and for how many records it is laid out (0: they do not have the same
    number)."""

    leaves: tuple[tuple[tuple[int, ...], np.dtype[Any], int], ...]
    sizes: tuple[int, ...]
    nbytes: int
    room: int

    @classmethod
    def of(cls, blanks: Sequence[Blank]) -> SlotPlan:
        """The plan for arrays of these shapes and dtypes."""
        sizes = tuple(math.prod(shape) * dtype.itemsize for shape, dtype in blanks)
        places, nbytes = offsets(sizes)
        rows = {shape[0] if shape else 0 for shape, _ in blanks}
        leaves = tuple(
            (shape, dtype, at) for (shape, dtype), at in zip(blanks, places, strict=True)
        )
        return cls(leaves, sizes, nbytes, rows.pop() if len(rows) == 1 else 0)


class OwnerRef(weakref.ref[Any]):
    """A weak reference to what stands for a slot's memory, and its identity."""

    __slots__ = ("key",)

    key: int


class LentOut(NamedTuple):
    """A slot in the hands of the user's own code: what stands for its memory, which begins at
    `address`, the plan of what lies in it, and the identities of the arrays that were given out."""

    slot: int
    owner: OwnerRef
    address: int
    plan: SlotPlan
    given: tuple[int, ...]

    @property
    def room(self) -> int:
        """For how many records the slot is laid out."""
        return self.plan.room

    def holds(self, leaves: Sequence[Array]) -> bool:
        """Whether every leaf lies in its place, with records of the size that it was laid out for."""
        plan = self.plan
        # nothing else has this memory as its base, so these are they
        if tuple(map(id, leaves)) == self.given:
            return plan.room > 0
        return len(leaves) == len(plan.sizes) and all(
            leaf.flags.c_contiguous
            and leaf.nbytes * plan.room == size * len(leaf)
            and leaf.__array_interface__["data"][0] == self.address + at
            for leaf, size, (_, _, at) in zip(leaves, plan.sizes, plan.leaves, strict=True)
        )
