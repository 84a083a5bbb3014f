"""The trainer's end of one worker's ring: views of filled slots, which return their slot when they
are gone."""

from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastfeed.core.batch import (
    BYTES,
    Batch,
    BatchSpec,
    nbytes_of,
)
from fastfeed.core.collate import aligned_arrays
from fastfeed.core.stats import SlotCounts
from fastfeed.ring.layout import decode, offsets
from fastfeed.ring.memory import NOWHERE, Descriptor, Segment, Untracked
from fastfeed.ring.slots import LENT, UNUSED
from fastfeed.ring.status_page import StatusPage

Array = np.ndarray[Any, Any]
MOST_RECIPES = 1024
# shape, dtype, offset; bytes of all
Recipe = tuple[tuple[tuple[tuple[int, ...], "np.dtype[Any]", int], ...], int]


class Hold(weakref.ref[Any]):
    """Notices when the last view of a slot is gone.

    That may happen at any moment, in any thread. Its callback must not be Python code: an exception
    of a signal handler in there would only be printed. So it is `deque.append`, and the slots in
    the deque are returned at the consumer's next call.
    """

    __slots__ = ("reader", "slot")

    reader: RingReader
    slot: int


@dataclass(frozen=True, eq=False)
class MappedSlots:
    """The memory of `slots`, each of `slot_nbytes`, in the trainer."""

    segment: Segment
    slots: range
    slot_nbytes: int
    owner: Any  # the ctypes array that stands for the memory of one slot


class SlotLease:
    """The hold of one batch on its slot."""

    __slots__ = ("_hold",)

    def __init__(self, hold: Hold) -> None:
        self._hold = hold

    def end(self) -> None:
        """Return the slot, even if it is still referenced."""
        self._hold.reader.gone.append(self._hold)


class RingReader:
    """Turns tokens into batches."""

    def __init__(
        self, board: StatusPage, *, returns: Descriptor, gone: deque[Hold], spared: int
    ) -> None:
        self.board = board
        self._returns = returns
        self.gone = gone
        self._spared = spared  # slots that the worker always keeps
        self._parts: list[MappedSlots] = []
        self._holds: dict[int, Hold] = {}  # by slot: those of the consumer
        self._known: set[int] = set()
        self._touched: set[int] = set()
        self._recipes: dict[tuple[int, int], Recipe] = {}

    def add_part(self, fd: int, slots: range, *, slot_nbytes: int) -> None:
        """Map the memory of new slots."""
        segment = Untracked(fd, slot_nbytes * len(slots))
        segment.close_fd()
        self._parts.append(MappedSlots(segment, slots, slot_nbytes, ctypes.c_ubyte * slot_nbytes))
        self._known.update(slots)

    def knows(self, slot: int) -> bool:
        """Return True if the memory of a slot is mapped here."""
        return slot in self._known

    def _open(self, slot: int, spec: BatchSpec, *, rows: int, room: int) -> Batch:
        """Return the batch in a slot, as views: the slot is returned with the last of them."""
        part = self._parts[-1]
        if slot not in part.slots:
            part = next(p for p in self._parts if slot in p.slots)
        offset = (slot - part.slots.start) * part.slot_nbytes
        if slot not in self._touched:
            self._touched.add(slot)
            part.segment.populate(offset, part.slot_nbytes, write=False)
        owner = part.owner.from_buffer(part.segment.map, offset)
        self._holds[slot] = hold = Hold(owner, self.gone.append)
        hold.reader, hold.slot = self, slot
        if room:
            recipe, nbytes = self._recipes.get((rows, room)) or self._recipe(spec, rows, room=room)
            leaves = tuple([np.ndarray(shape, dtype, owner, at) for shape, dtype, at in recipe])
        else:
            leaves = decode(owner)
            nbytes = sum(map(nbytes_of, leaves))
        return Batch(leaves, rows, nbytes, SlotLease(hold))

    def lend(self, slot: int, spec: BatchSpec, *, rows: int, room: int) -> tuple[Batch, bool]:
        """Return the batch in a slot for the consumer and False; or a copy and True, if the
        consumer has all slots that can be spared."""
        if len(self._parts) > 1:
            self._drop_unused()
        current = self._parts[-1].slots
        scarce = len(self._holds) + self._spared >= len(current)
        # else an exception of a signal handler interrupted an earlier call after this line
        if self.board.slots.state(slot) != LENT:
            self.board.slots.lend(slot)
        batch = self._open(slot, spec, rows=rows, room=room)
        return (copied(batch), True) if scarce else (batch, False)

    def take_back(self, holds: Iterable[Hold]) -> None:
        """Return slots without references to the worker."""
        slots = []
        for hold in holds:  # the same one may come twice: ended by the user, and gone
            if self._holds.get(hold.slot) is hold:
                del self._holds[hold.slot]
                self.board.slots.release(hold.slot)
                slots.append(hold.slot)
        if slots:
            returns = self._returns  # while it is referenced here, its number is no other file's
            with contextlib.suppress(OSError):  # the worker is gone, and its ring with it
                os.write(returns.fd, array("I", slots).tobytes())

    def close(self) -> None:
        """Return no more slots: the worker has ended. What was lent stays valid."""
        self._returns = NOWHERE

    def audit(self) -> SlotCounts:
        """Return how many slots are in each state."""
        return self.board.slots.audit()

    def _drop_unused(self) -> None:
        """Unmap memory whose slots the worker has given up."""
        used = [
            p for p in self._parts[:-1] if self.board.slots.count(UNUSED, p.slots) < len(p.slots)
        ]
        for part in self._parts[:-1]:
            if part not in used:
                self._known.difference_update(part.slots)
                self._touched.difference_update(part.slots)
        self._parts = [*used, self._parts[-1]]

    @property
    def slot_nbytes(self) -> int:
        """Size of a slot; 0 before there is one."""
        return self._parts[-1].slot_nbytes if self._parts else 0

    def _recipe(self, spec: BatchSpec, rows: int, *, room: int) -> Recipe:
        assert not spec.ragged and all(leaf.dtype != BYTES for leaf in spec.leaves)
        shapes = [tuple(int(d or 0) for d in leaf.shape) for leaf in spec.leaves]
        sizes = [
            room * leaf.dtype.itemsize * int(np.prod(s))
            for leaf, s in zip(spec.leaves, shapes, strict=True)
        ]
        places, _ = offsets(sizes)
        leaves = tuple(
            ((rows, *shape), leaf.dtype, at)
            for shape, leaf, at in zip(shapes, spec.leaves, places, strict=True)
        )
        if len(self._recipes) > MOST_RECIPES:
            self._recipes.clear()
        self._recipes[(rows, room)] = leaves, rows * spec.record_nbytes
        return self._recipes[(rows, room)]


def copied(batch: Batch) -> Batch:
    """Return a copy of the batch in memory of its own."""
    views = [leaf for leaf in batch.leaves if leaf.dtype.kind != "O"]  # objects are copies already
    copies = iter(aligned_arrays([(v.shape, v.dtype) for v in views]))
    leaves = tuple(leaf if leaf.dtype.kind == "O" else next(copies) for leaf in batch.leaves)
    for leaf, copy in zip(batch.leaves, leaves, strict=True):
        if copy is not leaf:
            np.copyto(copy, leaf)
    return Batch(leaves, batch.rows, batch.nbytes)
