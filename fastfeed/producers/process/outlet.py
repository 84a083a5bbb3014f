"""Where the batches of a producer in a worker process go: into slots of the ring."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastfeed.core.batch import BYTES, Batch, BatchSpec
from fastfeed.core.collate import Blank, aligned_arrays
from fastfeed.core.stats import StageRow
from fastfeed.producers.failure import carry
from fastfeed.producers.reorder import ProducedBatch
from fastfeed.ring.layout import encode, packed_nbytes
from fastfeed.ring.part import SlotPlan
from fastfeed.ring.token import BATCH, END, EPOCH, FAILED, HOLE, SKIPPED
from fastfeed.ring.writer import NO_NEED, RingWriter

Array = np.ndarray[Any, Any]
MOST_VIEWS = 1024


class RingOutlet:
    """The outlet of one producer. Every method may raise Stopped."""

    stopped = False  # a producer in a worker process learns of the end by Stopped

    def __init__(
        self,
        writer: RingWriter,
        thread: int,
        *,
        ordered: bool,
        epoch: int,
        admit: Callable[[int], bool],
    ) -> None:
        self.ordered = ordered
        self.admit = admit
        self.row = StageRow()
        self.position = 0
        self._writer = writer
        self._thread = thread
        self._spec: BatchSpec | None = None
        self._regular = True
        self._views: dict[tuple[int, int], list[Array]] = {}  # by slot and records
        self._nbytes: dict[int, int] = {}  # by records
        self._generation = 0
        self._blanks: Sequence[Blank] = ()
        self._plan = SlotPlan.of(())
        writer.need(thread, NO_NEED if ordered else epoch)

    def begin(self, ticket: int) -> None:
        """Note this producer's ticket: its batch must leave before those of any later ticket."""
        self._writer.need(self._thread, ticket)

    def allocate(self, blanks: Sequence[Blank]) -> Sequence[Array]:
        """Return arrays in a slot, to be filled and put."""
        # a description comes first, and its length is known only when everything is
        if not self._regular:
            return aligned_arrays(blanks)
        if blanks is not self._blanks:
            self._blanks, self._plan = blanks, SlotPlan.of(blanks)
        return self._writer.lend_out(self._lend(self._plan.nbytes), self._plan)

    def hold(self, key: int, item: int, *, record: int) -> None:
        """Write what is produced now to the status page, to name it if this process dies."""
        self._writer.board.hold(self._thread, (key, item, record))

    def put(self, made: ProducedBatch, key: int, *, item: int, spec: BatchSpec | None) -> bool:
        """Send a batch under its ticket or epoch."""
        batch = made.batch
        maker = self._thread if self.ordered else made.stream
        if batch is None or spec is None:
            self._writer.send((HOLE, maker, 0, key, item, 0, 0, self._writer.lane))
        else:
            if spec is not self._spec:
                self._learn(spec)
            slot, room = self._fill(batch)
            self._writer.commit(
                slot, (BATCH, maker, slot, key, item, batch.rows, room, self._writer.lane)
            )
        if self.ordered:
            self._writer.need(self._thread, NO_NEED)
        self._writer.board.publish(self._thread, self.row)
        return True

    def end_epoch(self, epoch: int) -> None:
        """Note that this producer has put everything of this epoch."""
        if not self.ordered:
            self._writer.need(self._thread, epoch + 1)
        self._send(EPOCH, key=epoch)

    def end(self) -> None:
        """Note that this producer has ended."""
        self._writer.need(self._thread, NO_NEED)
        self._writer.board.publish(self._thread, self.row)
        self._send(END)

    def fail(self, error: BaseException, ticket: int | None) -> None:
        """Pass on the error that ends this producer."""
        self._writer.tell(b"E", carry(error, ticket))
        self._send(FAILED, key=self.position)

    def skip(self, error: BaseException, ticket: int | None) -> None:
        """Pass on an error that costs only one record."""
        self._writer.tell(b"K", carry(error, ticket))
        self._send(SKIPPED, key=self.position)

    def _fill(self, batch: Batch) -> tuple[int, int]:
        """Return the slot that holds the batch now, and the number of records that it is laid out
        for."""
        leaves, room = batch.leaves, batch.rows if self._regular else 0
        lent = self._writer.borrowed(leaves)
        if lent is not None and self._regular and lent.holds(leaves):
            self._writer.claim(lent)
            return lent.slot, lent.room
        if self._regular:
            nbytes = self._nbytes.get(batch.rows) or self._measure(batch)
        else:
            leaves = tuple(encode(leaves))
            nbytes = packed_nbytes([leaf.nbytes for leaf in leaves])
        slot = self._lend(nbytes, wait=lent is None)
        # parts of the batch lie in the only slot that is available
        if slot < 0 and lent is not None:
            leaves = tuple(map(np.array, leaves))
            self._writer.claim(lent)
            slot = (
                lent.slot
                if self._writer.fits(lent.slot, nbytes)
                else self._exchange(lent.slot, nbytes)
            )
        for view, leaf in zip(self._views_of(slot, leaves, room=room), leaves, strict=True):
            view[...] = leaf
        return slot, room

    def _exchange(self, slot: int, nbytes: int) -> int:
        self._writer.abandon(slot)
        return self._lend(nbytes)

    def _measure(self, batch: Batch) -> int:
        """Return the bytes of regular batches with as many records."""
        if len(self._nbytes) > MOST_VIEWS:
            self._nbytes.clear()
        nbytes = self._nbytes[batch.rows] = packed_nbytes([leaf.nbytes for leaf in batch.leaves])
        return nbytes

    def _views_of(self, slot: int, leaves: Sequence[Array], *, room: int) -> Sequence[Array]:
        if not room:
            return self._writer.views(slot, leaves)
        if self._generation != self._writer.generation or len(self._views) > MOST_VIEWS:
            self._views.clear()
            self._generation = self._writer.generation
        found = self._views.get((slot, room))
        if found is None:
            found = self._views[slot, room] = self._writer.views(slot, leaves)
        return found

    def _lend(self, nbytes: int, *, wait: bool = True) -> int:
        slot = self._writer.lend(nbytes, self._thread, wait=False)
        if slot >= 0 or not wait:
            return slot
        start = time.perf_counter()
        slot = self._writer.lend(nbytes, self._thread)
        self.row.wait_out_s += time.perf_counter() - start
        return slot

    def _learn(self, spec: BatchSpec) -> None:
        self._spec = spec
        self._regular = not spec.ragged and all(leaf.dtype != BYTES for leaf in spec.leaves)
        self._writer.announce(spec)

    def _send(self, kind: int, *, key: int = 0) -> None:
        self._writer.send((kind, self._thread, 0, key, 0, 0, 0, self._writer.lane))
