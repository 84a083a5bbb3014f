"""A stretch of slots in a worker process, and what it lends of them to the user's own code."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fastfeed.ring.memory import Segment

Array = np.ndarray[Any, Any]


@dataclass(eq=False)
class Part:
    """The memory of the slots `slots`, each of `slot_nbytes`."""

    segment: Segment
    slots: range
    slot_nbytes: int
    touched: set[int]

    def __post_init__(self) -> None:
        self.address = ctypes.addressof(ctypes.c_ubyte.from_buffer(self.segment.map))

    def holds(self, address: int) -> bool:
        """Whether an address lies in this memory."""
        return self.address <= address < self.address + self.segment.nbytes

    def offset(self, slot: int) -> int:
        """Where a slot begins."""
        return (slot - self.slots.start) * self.slot_nbytes


class LentOut(NamedTuple):
    """A slot in the hands of the user's own code: a weak reference to what stands for its memory, where its leaves
    begin, and for how many records it is laid out."""

    slot: int
    owner: Any
    addresses: tuple[int, ...]
    sizes: tuple[int, ...]
    room: int

    def holds(self, leaves: Sequence[Array]) -> bool:
        """Whether every leaf lies in its place, with records of the size that it was laid out for."""
        return len(leaves) == len(self.sizes) and all(
            leaf.flags.c_contiguous
            and leaf.nbytes * self.room == size * len(leaf)
            and leaf.__array_interface__["data"][0] == address
            for leaf, size, address in zip(leaves, self.sizes, self.addresses, strict=True)
        )
