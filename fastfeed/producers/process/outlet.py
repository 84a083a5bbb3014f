"""Outlet of a producer in a worker process: into slots of the ring."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastfeed.core.batch import Batch, BatchSpec
from fastfeed.core.collate import Blank, aligned_arrays
from fastfeed.core.dtypes import BYTES
from fastfeed.producers.builder import Outlet
from fastfeed.producers.failure import encode_error, last_words
from fastfeed.producers.reorder import ProducedBatch
from fastfeed.ring.layout import encode
from fastfeed.ring.slot_block import MAX_KEPT, SlotPlan
from fastfeed.ring.token import BATCH, END, EPOCH, FAILURE, HOLE, LAST_WORDS, SKIP, STREAM
from fastfeed.ring.writer import FIRST_NEED, NO_NEED, RingWriter, Stopped
from fastfeed.source.stream_comparison import FIRST

Array = np.ndarray[Any, Any]


class RingOutlet(Outlet):
    """One producer's outlet."""

    def __init__(
        self,
        writer: RingWriter,
        thread: int,
        *,
        ordered: bool,
        epoch: int,
        admit: Callable[[int], bool],
        beside: bool = False,
    ) -> None:
        """`beside`: other threads of this process make batches, too."""
        super().__init__(ordered=ordered, admit=admit)
        self._beside = beside
        self._writer = writer
        self._thread = thread
        self._spec: BatchSpec | None = None
        self._regular = True
        self._begun: set[int] = set()  # streams of which the first few items are compared
        self._plans: dict[int, SlotPlan] = {}  # of regular batches, by records
        self._blanks: Sequence[Blank] = ()
        self._plan = SlotPlan.of(())
        writer.need(thread, NO_NEED if ordered else epoch)

    def begin(self, ticket: int) -> None:
        """Note this producer's ticket: its batch must leave before that of any later ticket."""
        self._writer.need(self._thread, ticket)

    def allocate(self, blanks: Sequence[Blank]) -> Sequence[Array]:
        """Return arrays in a slot, to be filled and put."""
        # A description comes first, and its length is known only at the end.
        if not self._regular:
            return aligned_arrays(blanks)
        if blanks is not self._blanks:
            self._blanks, self._plan = blanks, SlotPlan.of(blanks)
        return self._writer.lend_arrays(self._lend(self._plan.nbytes), self._plan)

    def compare(self, stream: int, item: int, *, digest: int) -> None:
        """Send the digest of an item, before its batch. The first ones need slots before those of
        other producers, which may be held back until they have come."""
        (self._begun.discard if item >= FIRST - 1 else self._begun.add)(stream)
        self._writer.need(self._thread, FIRST_NEED if self._begun else self.position)
        self._writer.send((STREAM, stream, 0, digest, item, 0, 0, self._writer.number))

    def mark(self, key: int, item: int, *, record: int) -> None:
        """Publish what is in progress, so that it can be named if this process dies."""
        self._writer.page.set_in_flight(self._thread, (key, item, record))

    def look(self, batch: Batch, place: str) -> None:
        """Watch a batch that the code of other threads may change until it is in the ring."""
        if self._beside:
            batch.watch(place)

    def put(self, produced: ProducedBatch, key: int, *, item: int, spec: BatchSpec | None) -> bool:
        """Send a batch under its ticket or epoch. Raise SpecError if it has changed meanwhile."""
        self._writer.refuse_stopped()
        batch = produced.batch
        origin = self._thread if self.ordered else produced.stream
        if batch is None or spec is None:
            self._writer.page.publish(self._thread, self.row)
            self._writer.send((HOLE, origin, 0, key, item, 0, 0, self._writer.number))
        else:
            if spec is not self._spec:
                self._set_spec(spec)
            slot, room = self._fill(batch)
            batch.refuse_changed()
            self._writer.page.publish(self._thread, self.row)
            self._writer.commit(
                slot, (BATCH, origin, slot, key, item, batch.rows, room, self._writer.number)
            )
        if self.ordered:
            self._writer.need(self._thread, NO_NEED)
        return True

    def put_borrowed(
        self, number: int, produced: ProducedBatch, *, key: int, spec: BatchSpec | None
    ) -> None:
        """Announce a batch that lies outside the ring, under this number."""
        if spec is not None and spec is not self._spec:
            self._set_spec(spec)
        origin = self._thread if self.ordered else produced.stream
        rows = 0 if produced.batch is None else produced.batch.rows
        self._writer.page.publish(self._thread, self.row)
        self._writer.send(
            (BATCH, origin, number, key, produced.number, rows, 0, self._writer.number)
        )

    def end_epoch(self, epoch: int) -> None:
        """Note that this producer has put its whole epoch."""
        if not self.ordered:
            self._writer.need(self._thread, epoch + 1)
        self._send(EPOCH, key=epoch)

    def end(self) -> None:
        """Note that this producer has ended."""
        self._writer.need(self._thread, NO_NEED)
        self._writer.page.publish(self._thread, self.row)
        self._send(END)

    def fail(self, error: BaseException, ticket: int | None) -> None:
        """Send the error that ends this producer; where that cannot be, its text. Raise what even
        prevents this: the text is there for the trainer when this process has ended."""
        self._writer.page.leave(last_words(error))
        slot = 0
        try:
            self._writer.send_news(b"E", encode_error(error, ticket))
        except BaseException as reason:
            if isinstance(reason, Stopped):
                raise
            slot = LAST_WORDS
        self._send(FAILURE, key=self.position, slot=slot)

    def skip(self, error: BaseException, ticket: int | None) -> None:
        """Send an error that costs one record only."""
        self.report(SKIP, encode_error(error, ticket), key=self.position)

    def report(self, kind: int, error: bytes, *, key: int) -> None:
        """Send an encoded error of the kind FAILURE or SKIP, in the epoch at position `key`."""
        self._writer.send_news(b"E" if kind == FAILURE else b"K", error)
        self._send(kind, key=key)

    def _fill(self, batch: Batch) -> tuple[int, int]:
        """Put the batch into a slot. Return the slot and the number of records that it is laid out
        for."""
        leaves, room = batch.leaves, batch.rows if self._regular else 0
        lent = self._writer.find_lent(leaves)
        if lent is not None and self._regular and lent.holds(leaves):
            self._writer.claim(lent)
            return lent.slot, lent.plan.room
        if self._regular:
            plan = self._plans.get(room) or self._plan_of(leaves, room)
        else:
            leaves = tuple(encode(leaves))
            plan = SlotPlan.of([(leaf.shape, leaf.dtype) for leaf in leaves])
        slot = self._lend(plan.nbytes, wait=lent is None)
        # The only available slot is the one that parts of the batch lie in.
        if slot < 0 and lent is not None:
            leaves = tuple(map(np.array, leaves))
            self._writer.claim(lent)
            slot = lent.slot
            if not self._writer.fits(slot, plan.nbytes):
                self._writer.abandon(slot)
                slot = self._lend(plan.nbytes)
        views = self._writer.views(slot, plan, keep=self._regular)
        for view, leaf in zip(views, leaves, strict=True):
            view[...] = leaf
        return slot, room

    def _plan_of(self, leaves: Sequence[Array], rows: int) -> SlotPlan:
        if len(self._plans) > MAX_KEPT:
            self._plans.clear()
        plan = SlotPlan.of([(leaf.shape, leaf.dtype) for leaf in leaves])
        self._plans[rows] = plan
        return plan

    def _lend(self, nbytes: int, *, wait: bool = True) -> int:
        slot = self._writer.lend(nbytes, self._thread, wait=False)
        if slot >= 0 or not wait:
            return slot
        start = time.perf_counter()
        slot = self._writer.lend(nbytes, self._thread)
        self.row.wait_out_s += time.perf_counter() - start
        return slot

    def _set_spec(self, spec: BatchSpec) -> None:
        self._spec = spec
        self._regular = not spec.ragged and all(leaf.dtype != BYTES for leaf in spec.leaves)
        self._writer.announce(spec)

    def _send(self, kind: int, *, key: int = 0, slot: int = 0) -> None:
        self._writer.send((kind, self._thread, slot, key, 0, 0, 0, self._writer.number))
