"""The worker's end of a ring: slots to fill, their memory, and the tokens that announce them."""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

from fastfeed.core.batch import BatchSpec
from fastfeed.errors import StateError
from fastfeed.ring.layout import MemoryShare, slot_nbytes
from fastfeed.ring.memory import Segment
from fastfeed.ring.slot_block import MAX_KEPT, LentSlot, OwnerRef, SlotBlock, SlotPlan
from fastfeed.ring.slots import FILLING, UNUSED
from fastfeed.ring.status_page import StatusPage
from fastfeed.ring.token import FORMAT, SLOT, Token

# Header of the news. b"S", bytes of a slot, first slot, count: the descriptor is that of new slots.
# b"P", bytes: the pickled spec. b"E", b"K", bytes: an error that ends the feed, or one that was
# skipped. These follow the header, or lie behind a descriptor if they are longer than SHORT_NBYTES.
NEWS = struct.Struct("<cqII")
SHORT_NBYTES = 2**12
GROWTH = 1.5
FIRST_NEED, NO_NEED = -1, 2**62  # keys below and above all others
SLOT_POLL_MS = 1000  # no wait is longer without a check of the state
# Limit of a wait while a free slot is reserved for another producer, which may no longer need it.
SHORT_WAIT_MS = 10
STOP_LOOK_S = 0.005  # between two looks at the stop event, each of which is a system call
Array = np.ndarray[Any, Any]


class Stopped(BaseException):
    """The feed is over. Unwinds a producer through any `except Exception` of the user's code."""


@dataclass(frozen=True)
class RingChannels:
    """A worker's ends of its ring: the pipe of returned slots, the pipe of tokens, the news socket
    and the stop event."""

    returned: int
    tokens: int
    news: socket.socket
    stop: int


class RingWriter:
    """Lends slots to the producers of one worker process and sends them to the trainer when
    filled."""

    def __init__(
        self, page: StatusPage, channels: RingChannels, *, share: MemoryShare, number: int
    ) -> None:
        self.page = page
        self._channels = channels
        self._share = share
        self.number = number
        # Reentrant: the garbage collector may call `_dropped` in the middle of any method.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._polling = False
        self._free: list[int] = []
        # Free and never used: their memory is not allocated before it is needed.
        self._fresh: list[int] = []
        # The last block is in use; the others wait for their slots to come back.
        self._blocks: list[SlotBlock] = []
        self._next_slot = 0
        self._stop_poll = select.poll()
        self._stop_poll.register(channels.stop, select.POLLIN)
        self._looked_s = 0.0  # when it looked at the stop event
        self._poll = select.poll()
        self._poll.register(channels.returned, select.POLLIN)
        self._poll.register(channels.stop, select.POLLIN)
        self._alone = share.threads == 1
        self._needs = [NO_NEED] * share.threads  # by producer: the key that it will need a slot for
        self._lent: dict[int, LentSlot] = {}  # by the identity of the owner of its memory
        self._lends_arrays = False
        self._announced = False

    def need(self, thread: int, key: int) -> None:
        """Note that a producer works on ticket or epoch `key` and will need a slot for it."""
        self._needs[thread] = key

    def refuse_stopped(self) -> None:
        """Raise Stopped soon after the end of the feed, also where no call has to wait."""
        now = time.perf_counter()
        if now - self._looked_s > STOP_LOOK_S:
            self._looked_s = now
            with self._lock:  # only one thread at a time may use a poll object
                if self._stop_poll.poll(0):
                    raise Stopped

    def lend(self, nbytes: int, thread: int, *, wait: bool = True) -> int:
        """Return a slot of at least `nbytes`. Wait for one, or return -1 if `wait` is False. Raise
        Stopped.

        The lowest key leaves first, so a producer never takes the slot that a producer with a lower
        key will need. Otherwise all slots could hold batches that wait for a batch without a slot.
        """
        with self._lock:
            while True:
                if not self._blocks or nbytes > self._blocks[-1].slot_nbytes:
                    self._grow(nbytes)
                reserve = (
                    0 if self._alone else sum(key < self._needs[thread] for key in self._needs)
                )
                if len(self._free) <= reserve:
                    self._collect()
                while len(self._free) <= reserve and self._fresh:
                    self._free.insert(0, self._fresh.pop())
                if len(self._free) > reserve:
                    slot = self._free.pop()  # the slot that came back last is still in the cache
                    self.page.slots.fill(slot)
                    return slot
                if not wait:
                    return -1
                self._refuse_hoarding()
                self._wait(SHORT_WAIT_MS if self._free else SLOT_POLL_MS)

    def _block_of(self, slot: int) -> SlotBlock:
        return next(b for b in reversed(self._blocks) if slot in b.slots)

    def _memory(self, slot: int) -> tuple[SlotBlock, int]:
        """Return the block of a slot and the slot's offset in it, with its pages allocated."""
        block = self._blocks[-1]
        if slot not in block.slots:
            block = self._block_of(slot)
        offset = block.offset(slot)
        if slot not in block.touched:
            block.touched.add(slot)
            block.segment.populate(offset, block.slot_nbytes, write=True)
        return block, offset

    def fits(self, slot: int, nbytes: int) -> bool:
        """Return True if a lent slot can hold `nbytes`."""
        return nbytes <= self._block_of(slot).slot_nbytes

    def views(self, slot: int, plan: SlotPlan, *, keep: bool) -> list[Array]:
        """Return arrays in a slot. `keep` them for the next batch with as many records."""
        found = self._blocks[-1].views.get((slot, plan.room)) if keep else None
        if found is None:
            block, offset = self._memory(slot)
            found = plan.arrays(block.segment.map, offset)
            if len(block.views) > MAX_KEPT:
                block.views.clear()
            if keep:
                block.views[slot, plan.room] = found
        return found

    def lend_arrays(self, slot: int, plan: SlotPlan) -> list[Array]:
        """Return arrays in a slot for the user's code. The slot is freed if they are dropped
        unused."""
        block, offset = self._memory(slot)
        self._lends_arrays = True
        owner = block.owner.from_buffer(block.segment.map, offset)
        arrays = plan.arrays(owner)
        ref = OwnerRef(owner, self._free_dropped)
        ref.key = id(owner)
        self._lent[ref.key] = LentSlot(
            slot, ref, block.address + offset, plan, tuple(map(id, arrays))
        )
        return arrays

    def find_lent(self, leaves: Sequence[Array]) -> LentSlot | None:
        """Return the slot that `lend_arrays` lent for a batch, or None for other memory. Raise
        StateError for memory that was sent already."""
        if not self._lends_arrays:
            return None
        found = None
        for leaf in leaves:
            owner = _memory_of(leaf)
            if not any(isinstance(owner, b.owner) for b in self._blocks):
                continue
            found = self._lent.get(id(owner))
            if found is None or found.owner() is not owner:
                raise StateError(
                    "a buffer of worker.empty() was yielded twice: a batch that was sent must "
                    "not be written to again. Call worker.empty() again for each batch, and yield "
                    "all of its arrays"
                )
        return found

    def claim(self, lent: LentSlot) -> None:
        """Take a slot over from the user's code."""
        self._lent.pop(lent.owner.key, None)

    def send(self, token: Token) -> None:
        """Send a token to the trainer. Raise Stopped if the trainer is gone."""
        try:
            os.write(self._channels.tokens, FORMAT.pack(*token))
        except BrokenPipeError:  # the kernel is about to kill this process, too
            raise Stopped from None

    def commit(self, slot: int, token: Token) -> None:
        """Send a filled slot, which belongs to the trainer from now on."""
        self.page.slots.commit(slot)
        self.send(token)

    def abandon(self, slot: int) -> None:
        """Take a lent slot back unused."""
        with self._changed:
            self.page.slots.abandon(slot)
            self._put_back(slot)
            self._changed.notify_all()

    def send_news(self, kind: bytes, text: bytes) -> None:
        """Send news of any length: short ones need no descriptor on either side. The token that
        refers to them follows."""
        header = NEWS.pack(kind, len(text), 0, 0)
        if len(text) <= SHORT_NBYTES:
            self._send(header + text)
            return
        segment = Segment.create(len(text), "fastfeed-news")
        segment.map[: len(text)] = text
        self._send(header, segment)

    def announce(self, spec: BatchSpec) -> None:
        """Send the spec of all batches, once."""
        with self._lock:  # no producer may send a batch before
            if not self._announced:
                self.send_news(b"P", cloudpickle.dumps(spec))
                self._announced = True

    def _send(self, message: bytes, segment: Segment | None = None) -> None:
        try:
            fds = [] if segment is None else [segment.fd]
            socket.send_fds(self._channels.news, [message], fds)
        except ConnectionError:
            raise Stopped from None
        finally:
            if segment is not None:
                segment.close_fd()

    def _grow(self, nbytes: int) -> None:
        """Add a block of slots that hold `nbytes`. The old block is dropped when its last slot is
        back."""
        size, taken = slot_nbytes(nbytes), 0
        if self._blocks:
            grown = slot_nbytes(int(self._blocks[-1].slot_nbytes * GROWTH))
            size = max(size, grown) if self._share.fits(grown) else size
            self._drop_empty_blocks()
            taken = sum(b.segment.nbytes for b in self._blocks)
        count = self._share.slots(size, taken)
        slots = range(self._next_slot, self._next_slot + count)
        # Nothing is changed yet if this raises: the user's code may go on without the batch.
        segment = Segment.create(size * count, "fastfeed-ring")
        block = SlotBlock(segment, slots, size)
        self._send(NEWS.pack(b"S", size, slots.start, count), segment)
        for slot in (*self._free, *self._fresh):
            self.page.slots.close(slot)
        self._free.clear()
        self._next_slot = slots.stop
        self.page.slots.open(slots)
        self._blocks.append(block)
        self._fresh = list(reversed(slots))

    def _collect(self) -> None:
        """Collect the returned slots; slots of an old block are closed."""
        try:
            ids = os.read(self._channels.returned, 4096)
        except BlockingIOError:
            return
        for (slot,) in SLOT.iter_unpack(ids):
            self._put_back(slot)
        if len(self._blocks) > 1:
            self._drop_empty_blocks()

    def _put_back(self, slot: int) -> None:
        if slot in self._blocks[-1].slots:
            self._free.append(slot)
        else:
            self.page.slots.close(slot)

    def _drop_empty_blocks(self) -> None:
        used = [
            b for b in self._blocks[:-1] if self.page.slots.count(UNUSED, b.slots) < len(b.slots)
        ]
        self._blocks = [*used, self._blocks[-1]]

    def _wait(self, limit_ms: int) -> None:
        """Wait until something may have changed. One producer polls the pipe; the others wait for
        it."""
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
        if any(fd == self._channels.stop for fd, _ in ready):
            raise Stopped

    def _refuse_hoarding(self) -> None:
        slots = self._blocks[-1].slots
        if (
            self._lends_arrays
            and self.page.slots.count(FILLING, slots) == len(slots) > self._share.threads
        ):
            raise StateError(
                f"all {len(slots)} slots are held by the producers' own code: "
                "worker.empty() was called repeatedly without a yield. Yield a batch (or drop "
                "its arrays) before the next call, or raise memory="
            )

    def _free_dropped(self, owner_ref: OwnerRef) -> None:
        """Free the slot of a lent buffer that the user's code dropped unused. The garbage collector
        may call this at any moment."""
        lent = self._lent.get(owner_ref.key)
        if lent is not None and lent.owner is owner_ref:
            del self._lent[owner_ref.key]
            self.abandon(lent.slot)


def _memory_of(array: Array) -> Any:
    """Return the object that owns an array's memory."""
    base: Any = array.base
    while type(base) is np.ndarray:
        base = base.base
    return base
