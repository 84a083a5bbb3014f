"""Outlet of a producer in an actor: into groups of messages to the trainer."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from fastfeed.core.batch import Batch, BatchSpec
from fastfeed.core.dtypes import BYTES
from fastfeed.core.stats import StageRow, copy
from fastfeed.errors import FeedError, ProducerFailed
from fastfeed.producers.builder import Outlet
from fastfeed.producers.failure import encode_error
from fastfeed.producers.reorder import ProducedBatch
from fastfeed.ring.layout import offsets
from fastfeed.ring.token import BATCH, END, EPOCH, FAILURE, HOLE, SKIP, STREAM

# An object of Ray costs about 1 ms, whatever its size: batches travel together up to this size, as
# long as the first of them has not waited for longer than GROUP_S.
GROUP_NBYTES = 2**22
GROUP_S = 0.005
# Larger batches are not copied into the block: Ray copies them before the producer goes on.
PACKED_NBYTES = 2**20
Array = np.ndarray[Any, Any]
SPEC = 100  # a kind beside those of ring.token: `body` is the pickled spec
# The forms of a batch: its leaves lie in the block of the group, each at a multiple of 64 from
# `body` on; `body` is the leaves; `body` is the pickled leaves.
PACKED, DIRECT, PICKLED = range(3)


class RemoteMessage(NamedTuple):
    """A token of `ring.token` on its way, with what the ring would hold. `form` and `rows` are
    those of a batch. `body` is its content, or an encoded error."""

    kind: int
    stream: int
    key: int
    item: int
    rows: int = 0
    form: int = PACKED
    body: Any = None


class MessageGroup(NamedTuple):
    """Messages that travel as one object: an object costs a millisecond, a message next to
    nothing. `block` holds the packed batches, `row` the counters of the producer."""

    row: StageRow
    messages: list[RemoteMessage]
    block: Array


class RemoteOutlet(Outlet):
    """Collects the messages of one producer until the actor yields them. `place` names the node
    and the process, for errors."""

    def __init__(self, *, ordered: bool, place: str, admit: Callable[[int], bool]) -> None:
        super().__init__(ordered=ordered, admit=admit)
        self._place = place
        self._messages: list[RemoteMessage] = []
        self._block = np.empty(0, np.uint8)
        self._used = 0
        self._since_s = 0.0
        self._added_s = time.perf_counter()
        self._full = False
        self._spec: BatchSpec | None = None
        self._regular = True

    def compare(self, stream: int, item: int, *, digest: int) -> None:
        """Send the digest of an item, before its batch."""
        self._add(RemoteMessage(STREAM, stream, digest, item))

    def put(self, produced: ProducedBatch, key: int, *, item: int, spec: BatchSpec | None) -> bool:
        """Add a batch under its ticket or epoch. Its memory may change once `take` was called."""
        stream = 0 if self.ordered else produced.stream
        batch = produced.batch
        if batch is None or spec is None:
            self._add(RemoteMessage(HOLE, stream, key, item))
            return True
        if spec is not self._spec:
            self._spec = spec
            self._regular = not spec.ragged and all(leaf.dtype != BYTES for leaf in spec.leaves)
            self._add(RemoteMessage(SPEC, 0, 0, 0, body=cloudpickle.dumps(spec)))
        form, body = self._content(batch)
        self._add(RemoteMessage(BATCH, stream, key, item, batch.rows, form, body))
        return True

    def end_epoch(self, epoch: int) -> None:
        """Note that this producer has put its whole epoch."""
        self._add(RemoteMessage(EPOCH, 0, epoch, 0))
        self._full = True

    def end(self) -> None:
        """Note that this producer has ended."""
        self._add(RemoteMessage(END, 0, 0, 0))

    def fail(self, error: BaseException, ticket: int | None) -> None:
        """Send the error that ends this producer."""
        self._report(FAILURE, error, ticket=ticket)

    def skip(self, error: BaseException, ticket: int | None) -> None:
        """Send an error that costs one record only."""
        self._report(SKIP, error, ticket=ticket)

    def due(self, *, idle: bool) -> bool:
        """Return True if the group should leave: it is large, it has waited, or the producer will
        wait (`idle`)."""
        return bool(self._messages) and (
            idle or self._full or time.perf_counter() - self._since_s > GROUP_S
        )

    def take(self) -> MessageGroup:
        """Return the messages. They must be copied before the next call of `put`."""
        group = MessageGroup(copy(self.row), self._messages, self._block[: self._used])
        self._messages, self._used, self._full = [], 0, False
        return group

    def resume(self, waited_s: float) -> None:
        """Go on after a group has left, for whose departure the producer has waited."""
        self.row.wait_out_s += waited_s
        self._added_s = time.perf_counter()

    def _content(self, batch: Batch) -> tuple[int, Any]:
        if not self._regular:
            self._full = True
            return PICKLED, pickle.dumps(batch.leaves, protocol=5)
        places, nbytes = offsets([leaf.nbytes for leaf in batch.leaves])
        if nbytes > PACKED_NBYTES:
            self._full = True
            return DIRECT, batch.leaves
        if not self._block.size:
            self._block = np.empty(GROUP_NBYTES, np.uint8)
        start = self._used
        for leaf, at in zip(batch.leaves, places, strict=True):
            np.ndarray(leaf.shape, leaf.dtype, self._block, start + at)[...] = leaf
        self._used += nbytes
        self._full = self._full or self._used + PACKED_NBYTES > GROUP_NBYTES
        return PACKED, start

    def _report(self, kind: int, error: BaseException, *, ticket: int | None) -> None:
        cause = error.__cause__
        if isinstance(error, ProducerFailed) and cause is not None:
            trace = f"({self._place})\n{error.trace}"
            error = ProducerFailed(error.place, cause, ticket=ticket, trace=trace)
        elif isinstance(error, FeedError) and type(error).__init__ is FeedError.__init__:
            error = type(error)(f"{error} ({self._place})")
        self._add(RemoteMessage(kind, 0, self.position, 0, body=encode_error(error, ticket)))

    def _add(self, message: RemoteMessage) -> None:
        now = time.perf_counter()
        if not self._messages:
            self._since_s = now
        # the next message of a slow producer is not worth a wait
        self._full = self._full or now - self._added_s > GROUP_S
        self._added_s = now
        self._messages.append(message)
