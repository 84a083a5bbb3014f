"""The worker's end of a ring: slots to fill, memory for them, and the tokens that describe them."""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

from fastfeed.core.batch import BatchSpec
from fastfeed.errors import StateError
from fastfeed.ring.layout import MemoryShare, offsets, slot_nbytes
from fastfeed.ring.memory import Segment
from fastfeed.ring.part import LentOut, OwnerRef, SlotBlock, SlotPlan
from fastfeed.ring.slots import FILLING, UNUSED
from fastfeed.ring.status_page import StatusPage
from fastfeed.ring.token import FORMAT, SLOT, Token

# News, each with a descriptor. b"S", bytes of a slot, the first slot, their number: memory of new
# slots. b"P", bytes: the spec, pickled. b"E", b"K", bytes: an error that ends the feed, or one that
# was skipped.
NEWS = struct.Struct("<cqII")
GROWTH = 1.5
NO_NEED = 2**62
WAIT_MS = 1000  # no wait is longer without a check
# and this long if a free slot is reserved for another producer, which may not need it any more
SHORT_WAIT_MS = 10
Array = np.ndarray[Any, Any]


class Stopped(BaseException):
    """The feed is over: unwinds a producer, whatever its own code catches."""


@dataclass(frozen=True)
class RingChannels:
    """What a worker has of its ring: the pipes of returned slots and of tokens, the news, and the
    stop event."""

    returned: int
    tokens: int
    news: socket.socket
    stop: int


class RingWriter:
    """Lends slots to the producers of one worker process, and sends them when they are filled."""

    def __init__(
        self, board: StatusPage, ends: RingChannels, *, share: MemoryShare, lane: int
    ) -> None:
        self.board = board
        self._ends = ends
        self._share = share
        self.lane = lane
        self.generation = 0  # counts the blocks: views of slots are valid for one generation
        # the garbage collector may call in here at any moment
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._polling = False
        self._free: list[int] = []
        # free and never used: their memory does not exist before it is needed
        self._fresh: list[int] = []
        # the last one is in use; the others wait for the return of their slots
        self._parts: list[SlotBlock] = []
        self._next_slot = 0
        self._poll = select.poll()
        self._poll.register(ends.returned, select.POLLIN)
        self._poll.register(ends.stop, select.POLLIN)
        self._alone = share.threads == 1
        self._needs = [NO_NEED] * share.threads  # by producer: the key that it will need a slot for
        # by the identity of the object that stands for their memory
        self._lent_out: dict[int, LentOut] = {}
        self._lends_out = False
        self._announced = False

    def need(self, thread: int, key: int) -> None:
        """Note that a producer works on the ticket or epoch `key`, and will need a slot for it."""
        self._needs[thread] = key

    def lend(self, nbytes: int, thread: int, *, wait: bool = True) -> int:
        """Return a slot of at least `nbytes`: wait for one, or else return -1. Raise Stopped.

        The batch with the lowest key leaves first. So no producer gets the slot that one with a
        lower key will need: otherwise all slots might hold batches that wait for a batch without a
        slot.
        """
        with self._lock:
            while True:
                if not self._parts or nbytes > self._parts[-1].slot_nbytes:
                    self._grow(nbytes)
                reserve = (
                    0 if self._alone else sum(key < self._needs[thread] for key in self._needs)
                )
                if len(self._free) <= reserve:
                    self._collect()
                while len(self._free) <= reserve and self._fresh:
                    self._free.insert(0, self._fresh.pop())
                if len(self._free) > reserve:
                    slot = self._free.pop()  # the one that was returned last is still in the cache
                    self.board.slots.fill(slot)
                    return slot
                if not wait:
                    return -1
                self._refuse_hoarding()
                self._wait(SHORT_WAIT_MS if self._free else WAIT_MS)

    def _part_of(self, slot: int) -> SlotBlock:
        return next(p for p in reversed(self._parts) if slot in p.slots)

    def _memory(self, slot: int) -> tuple[SlotBlock, int]:
        """Return the block that a slot lies in, and its offset there; its pages are allocated."""
        part = self._parts[-1]
        if slot not in part.slots:
            part = self._part_of(slot)
        offset = part.offset(slot)
        if slot not in part.touched:
            part.touched.add(slot)
            part.segment.populate(offset, part.slot_nbytes, write=True)
        return part, offset

    def fits(self, slot: int, nbytes: int) -> bool:
        """Return True if a lent slot can hold `nbytes`."""
        return nbytes <= self._part_of(slot).slot_nbytes

    def views(self, slot: int, like: Sequence[Array]) -> list[Array]:
        """Return arrays of the shapes and dtypes of `like` that lie in a slot."""
        part, offset = self._memory(slot)
        places, _ = offsets([a.nbytes for a in like])
        return [
            np.ndarray(a.shape, a.dtype, part.segment.map, offset + at)
            for a, at in zip(like, places, strict=True)
        ]

    def lend_out(self, slot: int, plan: SlotPlan) -> list[Array]:
        """Return such arrays for the user's own code: the slot is free again when they are gone
        unused."""
        part, offset = self._memory(slot)
        self._lends_out = True
        owner = part.owner.from_buffer(part.segment.map, offset)
        arrays = [np.ndarray(shape, dtype, owner, at) for shape, dtype, at in plan.leaves]
        alive = OwnerRef(owner, self._dropped)
        alive.key = id(owner)
        self._lent_out[alive.key] = LentOut(
            slot, alive, part.address + offset, plan, tuple(map(id, arrays))
        )
        return arrays

    def borrowed(self, leaves: Sequence[Array]) -> LentOut | None:
        """Return the slot that a batch was lent by `lend_out`, or None for other memory. Raise
        StateError for memory that was sent."""
        if not self._lends_out:
            return None
        found = None
        for leaf in leaves:
            owner = _memory_of(leaf)
            if not any(isinstance(owner, p.owner) for p in self._parts):
                continue
            found = self._lent_out.get(id(owner))
            if found is None or found.owner() is not owner:
                raise StateError(
                    "a buffer of worker.empty() was yielded twice: a batch that was sent must not "
                    "be written to. Call worker.empty() again for each batch, and yield all of its "
                    "arrays"
                )
        return found

    def claim(self, lent: LentOut) -> None:
        """Take a slot back from the user's code: it is about to be sent."""
        self._lent_out.pop(lent.owner.key, None)

    def send(self, token: Token) -> None:
        """Send a token to the trainer. Raise Stopped if it has ended."""
        try:
            os.write(self._ends.tokens, FORMAT.pack(*token))
        except BrokenPipeError:  # the kernel is about to kill this process, too
            raise Stopped from None

    def commit(self, slot: int, token: Token) -> None:
        """Send a filled slot: it is the trainer's from now on."""
        self.board.slots.commit(slot)
        self.send(token)

    def abandon(self, slot: int) -> None:
        """Take an unused slot back."""
        with self._changed:
            self.board.slots.abandon(slot)
            self._put_back(slot)
            self._changed.notify_all()

    def tell(self, kind: bytes, text: bytes) -> None:
        """Send news of any length. Its token follows."""
        segment = Segment.create(max(1, len(text)), "fastfeed-news")
        segment.map[: len(text)] = text
        self._tell(segment, NEWS.pack(kind, len(text), 0, 0))

    def announce(self, spec: BatchSpec) -> None:
        """Send the spec of all batches to come, once."""
        with self._lock:  # no other producer's batch may be sent before
            if not self._announced:
                self.tell(b"P", cloudpickle.dumps(spec))
                self._announced = True

    def _tell(self, segment: Segment, message: bytes) -> None:
        try:
            socket.send_fds(self._ends.news, [message], [segment.fd])
        except ConnectionError:
            raise Stopped from None
        finally:
            segment.close_fd()

    def _grow(self, nbytes: int) -> None:
        """Add a block with slots that hold `nbytes`; the old one goes with its last slot."""
        size, taken = slot_nbytes(nbytes), 0
        if self._parts:
            roomy = slot_nbytes(int(self._parts[-1].slot_nbytes * GROWTH))
            size = max(size, roomy) if self._share.holds(roomy) else size
            for slot in (*self._free, *self._fresh):
                self.board.slots.close(slot)
            self._free.clear()
            self._drop_empty_parts()
            taken = sum(p.segment.nbytes for p in self._parts)
        count = self._share.slots(size, taken)
        slots = range(self._next_slot, self._next_slot + count)
        segment = Segment.create(size * count, "fastfeed-ring")
        self._next_slot = slots.stop
        self.board.slots.open(slots)
        self._parts.append(SlotBlock(segment, slots, size, set()))
        self._fresh = list(reversed(slots))
        self.generation += 1
        self._tell(segment, NEWS.pack(b"S", size, slots.start, count))

    def _collect(self) -> None:
        """Take returned slots; those of an old block are not free again."""
        try:
            ids = os.read(self._ends.returned, 4096)
        except BlockingIOError:
            return
        for (slot,) in SLOT.iter_unpack(ids):
            self._put_back(slot)
        if len(self._parts) > 1:
            self._drop_empty_parts()

    def _put_back(self, slot: int) -> None:
        if slot in self._parts[-1].slots:
            self._free.append(slot)
        else:
            self.board.slots.close(slot)

    def _drop_empty_parts(self) -> None:
        used = [
            p for p in self._parts[:-1] if self.board.slots.count(UNUSED, p.slots) < len(p.slots)
        ]
        self._parts = [*used, self._parts[-1]]

    def _wait(self, limit_ms: int) -> None:
        """Wait until something may have changed: one producer reads the pipe for all."""
        if self._polling:
            self._changed.wait(limit_ms / 1000)
            return
        self._polling = True
        self._changed.release()
        try:
            ready = self._poll.poll(limit_ms)
        finally:
            self._changed.acquire()
            self._polling = False
            self._changed.notify_all()
        if any(fd == self._ends.stop for fd, _ in ready):
            raise Stopped

    def _refuse_hoarding(self) -> None:
        slots = self._parts[-1].slots
        if (
            self._lends_out
            and self.board.slots.count(FILLING, slots) == len(slots) > self._share.threads
        ):
            raise StateError(
                f"all {len(slots)} slots are lent to the producers' own code: worker.empty() was "
                "called repeatedly without a yield. Yield a batch (or drop its arrays) before the "
                "next call, or raise memory="
            )

    def _dropped(self, gone: OwnerRef) -> None:
        """Take back a lent slot that the user's code dropped unused. The garbage collector may call
        this at any moment."""
        lent = self._lent_out.get(gone.key)
        if lent is not None and lent.owner is gone:
            del self._lent_out[gone.key]
            self.abandon(lent.slot)


def _memory_of(array: Array) -> Any:
    """Return the object that finally owns an array's memory."""
    base: Any = array.base
    while type(base) is np.ndarray:
        base = base.base
    return base
