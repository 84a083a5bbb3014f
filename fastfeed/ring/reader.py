"""The trainer's end of one worker's ring: views of filled slots. A slot returns to the worker when
its last view is gone."""

from __future__ import annotations

import contextlib
import os
import weakref
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fastfeed.core.batch import (
    Batch,
    BatchSpec,
    nbytes_of,
)
from fastfeed.core.collate import aligned_arrays
from fastfeed.core.dtypes import BYTES
from fastfeed.core.stats import SlotCounts
from fastfeed.ring.layout import decode
from fastfeed.ring.memory import CLOSED, Descriptor, Segment
from fastfeed.ring.slot_block import MAX_KEPT, SlotBlock, SlotPlan
from fastfeed.ring.slots import LENT, UNUSED
from fastfeed.ring.status_page import StatusPage

Array = np.ndarray[Any, Any]


class SlotRef(weakref.ref[Any]):
    """Weak reference that notices when the last view of a slot is gone.

    That may happen at any moment, in any thread. The callback must not be Python code: an exception
    of a signal handler that arrives inside it would only be printed. So the callback is
    `deque.append`, and the consumer returns the slots in the deque on its next call.
    """

    __slots__ = ("reader", "slot")

    reader: RingReader
    slot: int


class RingReader:
    """Opens the batches that tokens announce."""

    def __init__(
        self, page: StatusPage, *, returns: Descriptor, released: deque[SlotRef], reserved: int
    ) -> None:
        self.page = page
        self._returns = returns
        self.released = released
        self._reserved = reserved  # slots that the worker must always keep
        self._blocks: list[SlotBlock] = []
        self._lent: dict[int, SlotRef] = {}  # by slot: what the consumer holds
        self.mapped: set[int] = set()  # slots whose memory is mapped here
        # plan and size of the content, by records and by room for them
        self._plans: dict[tuple[int, int], tuple[SlotPlan, int]] = {}

    def add_block(self, fds: Sequence[int], slots: range, *, slot_nbytes: int) -> None:
        """Map the memory of new slots. Raise OSError if that cannot be."""
        segment = Segment.received(fds, slot_nbytes * len(slots))
        self._blocks.append(SlotBlock(segment, slots, slot_nbytes))
        self.mapped.update(slots)

    def _open(self, slot: int, spec: BatchSpec, *, rows: int, room: int) -> Batch:
        """Return the batch in a slot as views; the slot is returned when the last view is gone."""
        block = self._blocks[-1]
        if slot not in block.slots:
            block = next(b for b in self._blocks if slot in b.slots)
        offset = block.offset(slot)
        if slot not in block.touched:
            block.touched.add(slot)
            block.segment.populate(offset, block.slot_nbytes, write=False)
        owner = block.owner.from_buffer(block.segment.map, offset)
        self._lent[slot] = ref = SlotRef(owner, self.released.append)
        ref.reader, ref.slot = self, slot
        if room:
            plan, nbytes = self._plans.get((rows, room)) or self._plan(spec, rows, room=room)
            leaves = tuple([np.ndarray(s, dtype, owner, at) for s, dtype, at in plan.leaves])
        else:
            leaves = decode(owner)
            nbytes = sum(map(nbytes_of, leaves))
        return Batch(leaves, rows, nbytes)

    def lend(self, slot: int, spec: BatchSpec, *, rows: int, room: int) -> tuple[Batch, bool]:
        """Lend the batch in a slot to the consumer: return (views, False), or (a copy, True) if the
        consumer already holds all the slots that can be spared."""
        if len(self._blocks) > 1:
            self._drop_unused()
        current = self._blocks[-1].slots
        # A loop holds its batch while it gets the next one, also with the smallest ring.
        scarce = len(self._lent) + min(self._reserved, len(current) - 2) >= len(current)
        # The slot is already lent if an exception of a signal handler interrupted an earlier call
        # behind this point.
        if self.page.slots.state(slot) != LENT:
            self.page.slots.lend(slot)
        batch = self._open(slot, spec, rows=rows, room=room)
        return (copied(batch), True) if scarce else (batch, False)

    def return_slots(self, refs: Iterable[SlotRef]) -> None:
        """Return slots without views to the worker."""
        slots = []
        for ref in refs:  # of a call that was interrupted, the slot may be lent anew
            if self._lent.get(ref.slot) is ref:
                del self._lent[ref.slot]
                self.page.slots.release(ref.slot)
                slots.append(ref.slot)
        if slots:
            returns = self._returns  # this reference keeps its number from being reused
            with contextlib.suppress(OSError):  # the worker is gone, and its ring with it
                os.write(returns.fd, array("I", slots).tobytes())

    def close(self) -> None:
        """Stop returning slots, because the worker is gone. Lent batches stay valid."""
        self._returns = CLOSED

    def audit(self) -> SlotCounts:
        """Return the number of slots in each state."""
        return self.page.slots.audit()

    def _drop_unused(self) -> None:
        """Unmap memory whose slots the worker has closed."""
        used = [
            b for b in self._blocks[:-1] if self.page.slots.count(UNUSED, b.slots) < len(b.slots)
        ]
        for block in self._blocks[:-1]:
            if block not in used:
                self.mapped.difference_update(block.slots)
        self._blocks = [*used, self._blocks[-1]]

    @property
    def slot_nbytes(self) -> int:
        """Size of a slot in bytes; 0 before there is one."""
        return self._blocks[-1].slot_nbytes if self._blocks else 0

    def _plan(self, spec: BatchSpec, rows: int, *, room: int) -> tuple[SlotPlan, int]:
        assert not spec.ragged and all(leaf.dtype != BYTES for leaf in spec.leaves)
        if len(self._plans) > MAX_KEPT:
            self._plans.clear()
        blanks = [((room, *(int(d or 0) for d in leaf.shape)), leaf.dtype) for leaf in spec.leaves]
        plan = SlotPlan.of(blanks).beginning(rows)
        self._plans[rows, room] = plan, rows * spec.record_nbytes
        return self._plans[rows, room]


def copied(batch: Batch) -> Batch:
    """Return the same batch in memory of its own."""
    views = [leaf for leaf in batch.leaves if leaf.dtype.kind != "O"]  # objects are copies already
    copies = iter(aligned_arrays([(v.shape, v.dtype) for v in views]))
    leaves = tuple(leaf if leaf.dtype.kind == "O" else next(copies) for leaf in batch.leaves)
    for leaf, copy in zip(batch.leaves, leaves, strict=True):
        if copy is not leaf:
            np.copyto(copy, leaf)
    return Batch(leaves, batch.rows, batch.nbytes)
