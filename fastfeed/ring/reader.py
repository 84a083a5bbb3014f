"""The trainer's end of one worker's ring: views on filled slots that give their slot back when they are gone."""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fastfeed.batch import BYTES, Batch, BatchSpec
from fastfeed.collate import aligned_arrays
from fastfeed.ring.board import Board
from fastfeed.ring.layout import decode, offsets
from fastfeed.ring.memory import Descriptor, Segment
from fastfeed.ring.slots import LENT, UNUSED, Slots
from fastfeed.ring.token import SLOT
from fastfeed.stats import Audit

Array = np.ndarray[Any, Any]
Recipe = tuple[tuple[tuple[int, ...], "np.dtype[Any]", int], ...]  # shape, dtype and offset of each leaf


@dataclass(frozen=True)
class Returns:
    """The way back of a slot. Whoever drops the last view of it comes here, in any thread, at any moment: so this must
    take no lock. A forked copy of this process has the same views but not the slots."""

    slots: Slots
    pipe: Descriptor
    pid: int

    def give_back(self, slot: int) -> None:
        """The slot is free, and the worker knows."""
        if os.getpid() != self.pid:
            return
        self.slots.release(slot)
        try:
            os.write(self.pipe.fd, SLOT.pack(slot))
        except OSError:  # the worker is gone, and its ring with it
            return


@dataclass(frozen=True)
class Part:
    """The memory of the slots `slots`, each of `slot_nbytes`."""

    segment: Segment
    slots: range
    slot_nbytes: int
    owner: Any  # the ctypes array that stands for the memory of one slot


class Lease:
    """One batch's hold on its slot."""

    __slots__ = ("_leaves", "_reader", "slot")

    def __init__(self, reader: Reader, slot: int, leaves: int) -> None:
        self._reader = reader
        self.slot = slot
        self._leaves = leaves

    def hand_out(self) -> bool:
        """The consumer gets it; False where it must get a copy, because no more slots can be spared."""
        return self._reader.hand_out(self.slot)

    def end(self) -> None:
        """Gives the slot back now, unless somebody made a view or a tensor of a leaf: that one ends the lease."""
        self._reader.end(self.slot, self._leaves)


class Reader:
    """Makes batches of tokens."""

    def __init__(self, board: Board, *, returns: int, spared: int) -> None:
        self.board = board
        self._returns = Returns(board.slots, Descriptor(returns), os.getpid())
        self._spared = spared  # slots that the worker must always be left with
        self._parts: list[Part] = []
        self._owners: dict[int, weakref.ref[Any]] = {}
        self._back: dict[int, Callable[[Any], None]] = {}
        self._touched: set[int] = set()
        self._recipes: dict[tuple[int, int], Recipe] = {}

    def add_part(self, fd: int, slots: range, slot_nbytes: int) -> None:
        """Maps the memory of new slots; memory whose slots the worker has given up goes."""
        segment = Segment(fd, slot_nbytes * len(slots))
        segment.close_fd()
        self._parts = [p for p in self._parts if self.board.slots.count(UNUSED, p.slots) < len(p.slots)]
        self._parts.append(Part(segment, slots, slot_nbytes, ctypes.c_ubyte * slot_nbytes))
        self._back.update((slot, partial(self._gone, self._owners, self._returns, slot)) for slot in slots)

    def knows(self, slot: int) -> bool:
        """Whether the memory of a slot is here."""
        return slot in self._back

    def open(self, slot: int, spec: BatchSpec, *, rows: int, room: int) -> Batch:
        """The batch in a slot, as views; the slot goes back when the last of them is gone."""
        part = self._parts[-1]
        if slot not in part.slots:
            part = next(p for p in self._parts if slot in p.slots)
        offset = (slot - part.slots.start) * part.slot_nbytes
        if slot not in self._touched:
            self._touched.add(slot)
            part.segment.populate(offset, part.slot_nbytes, write=False)
        owner = part.owner.from_buffer(part.segment.map, offset)
        self._owners[slot] = weakref.ref(owner, self._back[slot])
        if room:
            recipe = self._recipes.get((rows, room)) or self._recipe(spec, rows, room=room)
            leaves = tuple([np.ndarray(shape, dtype, owner, at) for shape, dtype, at in recipe])
            nbytes = rows * spec.record_nbytes
        else:
            leaves = decode(np.frombuffer(owner, np.uint8))
            nbytes = sum(leaf.nbytes for leaf in leaves)
        views = sum(leaf.dtype.kind != "O" for leaf in leaves)
        return Batch(leaves, rows, nbytes, Lease(self, slot, views) if views else None)

    def hand_out(self, slot: int) -> bool:
        """Whether the worker is left with slots enough when the consumer has this one, too."""
        slots, current = self.board.slots, self._parts[-1].slots
        if slots.count(LENT, current) + self._spared >= len(current):
            return False
        slots.lend(slot)
        return True

    def end(self, slot: int, leaves: int) -> None:
        """See Lease.end: beside the leaves only this function may hold the owner."""
        owner = self._owners[slot]() if slot in self._owners else None
        if owner is None or sys.getrefcount(owner) > leaves + 2:
            return
        del self._owners[slot]
        self._returns.give_back(slot)

    def audit(self) -> Audit:
        """Where every slot is."""
        return self.board.slots.audit()

    @property
    def slot_nbytes(self) -> int:
        """The size of a slot; 0 before there is one."""
        return self._parts[-1].slot_nbytes if self._parts else 0

    def _recipe(self, spec: BatchSpec, rows: int, *, room: int) -> Recipe:
        assert not spec.ragged and all(leaf.dtype != BYTES for leaf in spec.leaves)
        shapes = [tuple(int(d or 0) for d in leaf.shape) for leaf in spec.leaves]
        sizes = [room * leaf.dtype.itemsize * int(np.prod(s)) for leaf, s in zip(spec.leaves, shapes, strict=True)]
        places, _ = offsets(sizes)
        found = tuple(
            ((rows, *shape), leaf.dtype, at) for shape, leaf, at in zip(shapes, spec.leaves, places, strict=True)
        )
        self._recipes[(rows, room)] = found
        return found

    @staticmethod
    def _gone(owners: dict[int, Any], returns: Returns, slot: int, owner: Any) -> None:
        if owners.pop(slot, None) is owner:
            returns.give_back(slot)


def copied(batch: Batch) -> Batch:
    """The same batch in memory of its own."""
    views = [leaf for leaf in batch.leaves if leaf.dtype.kind != "O"]  # objects are copies already
    copies = iter(aligned_arrays([(v.shape, v.dtype) for v in views]))
    leaves = tuple(leaf if leaf.dtype.kind == "O" else next(copies) for leaf in batch.leaves)
    for leaf, copy in zip(batch.leaves, leaves, strict=True):
        if copy is not leaf:
            np.copyto(copy, leaf)
    return Batch(leaves, batch.rows, batch.nbytes)
