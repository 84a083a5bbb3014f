"""Where a producer's batches go, in a worker process: into slots of the ring."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastfeed.batch import BYTES, Batch, BatchSpec
from fastfeed.collate import Blank
from fastfeed.producers.failure import carry
from fastfeed.producers.sequence import Made
from fastfeed.ring.board import IDLE
from fastfeed.ring.layout import encode, packed_nbytes
from fastfeed.ring.token import BATCH, END, EPOCH, FAILED, HOLE, SKIPPED, Token
from fastfeed.ring.writer import Writer
from fastfeed.stats import StageRow

Array = np.ndarray[Any, Any]
MOST_VIEWS = 1024


class RingOutlet:
    """One producer's way out. Every method may raise Stopped."""

    stopped = False  # a producer in a worker process learns of the end by Stopped

    def __init__(self, writer: Writer, thread: int, *, ordered: bool, epochs: list[int]) -> None:
        self.ordered = ordered
        self.row = StageRow()
        self._writer = writer
        self._thread = thread
        self._epochs = epochs  # where this worker's producers are, shared between them
        self._slot: int | None = None  # lent in advance
        self._spec: BatchSpec | None = None
        self._regular = True
        self._views: dict[tuple[int, int], list[Array]] = {}
        self._generation = 0

    def reserve(self) -> None:
        """A slot in advance: whoever holds a ticket must be able to deliver it, or all would wait for that ticket."""
        if self._slot is None and self._writer.generation:
            self._slot = self._lend(1)

    def allocate(self, blanks: Sequence[Blank]) -> list[Array]:
        """Arrays in a slot, to be filled and put."""
        slot = self._take_slot(packed_nbytes([math.prod(shape) * dtype.itemsize for shape, dtype in blanks]))
        return self._writer.lend_out(slot, blanks)

    def hold(self, key: int, item: int, record: int) -> None:
        """Shows what is being made, so that it can be named if this process dies."""
        self._writer.board.hold(self._thread, (key, item, record))

    def put(self, made: Made, key: int, *, item: int, spec: BatchSpec | None) -> bool:
        """Sends a batch off under its ticket or epoch."""
        batch = made.batch
        if batch is None or spec is None:
            self._send(HOLE, key=key, item=item)
        else:
            if spec is not self._spec:
                self._learn(spec)
            slot, room = self._fill(batch)
            self._writer.commit(slot, Token(BATCH, self._thread, slot, key, item, batch.rows, room, self._writer.lane))
        self._writer.board.publish(self._thread, self.row)
        self._writer.board.hold(self._thread, IDLE)
        return True

    def end_epoch(self, epoch: int) -> None:
        """This producer has put everything that it has in this epoch."""
        self._epochs[self._thread] = epoch + 1
        self._send(EPOCH, key=epoch)

    def end(self) -> None:
        """This producer has ended."""
        self._writer.board.publish(self._thread, self.row)
        self._send(END)

    def fail(self, error: BaseException, ticket: int | None) -> None:
        """The error that ends this producer."""
        self._writer.tell(b"E", carry(error, ticket))
        self._send(FAILED)

    def skip(self, error: BaseException, ticket: int | None) -> None:
        """An error that costs one record only."""
        self._writer.tell(b"E", carry(error, ticket))
        self._send(SKIPPED)

    def _fill(self, batch: Batch) -> tuple[int, int]:
        """The slot that holds the batch now, and the number of records that it is laid out for."""
        lent = self._writer.claim(batch.leaves)
        if lent is not None and lent[1] and self._regular:
            return lent
        parts: Sequence[Array] = batch.leaves if self._regular else encode(batch.leaves)
        slot = self._take_slot(packed_nbytes([p.nbytes for p in parts]))
        for view, part in zip(self._views_of(slot, parts, rows=batch.rows), parts, strict=True):
            view[...] = part
        if lent is not None:
            self._writer.abandon(lent[0])
        return slot, batch.rows if self._regular else 0

    def _take_slot(self, nbytes: int) -> int:
        slot, self._slot = self._slot, None
        if slot is not None and self._writer.fits(slot, nbytes):
            return slot
        if slot is not None:
            self._writer.abandon(slot)
        return self._lend(nbytes)

    def _views_of(self, slot: int, parts: Sequence[Array], *, rows: int) -> Sequence[Array]:
        if not self._regular:
            return self._writer.views(slot, parts)
        if self._generation != self._writer.generation or len(self._views) > MOST_VIEWS:
            self._views.clear()
            self._generation = self._writer.generation
        found = self._views.get((slot, rows))
        if found is None:
            found = self._views[slot, rows] = self._writer.views(slot, parts)
        return found

    def _lend(self, nbytes: int) -> int:
        """Producers in an earlier epoch go first: only their batches can leave now."""
        mine = self._epochs[self._thread]
        start = time.perf_counter()
        slot = self._writer.lend(nbytes, reserve=sum(e < mine for e in self._epochs))
        self.row.wait_out_s += time.perf_counter() - start
        return slot

    def _learn(self, spec: BatchSpec) -> None:
        self._spec = spec
        self._regular = not spec.ragged and all(leaf.dtype != BYTES for leaf in spec.leaves)
        self._writer.announce(spec)

    def _send(self, kind: int, *, key: int = 0, item: int = 0) -> None:
        self._writer.send(Token(kind, self._thread, 0, key, item, 0, 0, self._writer.lane))
