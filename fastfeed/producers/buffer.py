"""Bounded buffer between producers and consumer: ordered or by epoch, limited in bytes, free of
deadlocks."""

from __future__ import annotations

import contextlib
import threading
import time

from fastfeed.core.stats import StageRow
from fastfeed.core.status import ROOM, waiting
from fastfeed.errors import ProducerError, ProducerFailed
from fastfeed.producers.reorder import (
    STOP_CHECK_S,
    Failure,
    ProducedBatch,
    ReorderBuffer,
    Timeout,
)

MAX_EARLY = 4096  # batches; a bound for those too small for the limit in bytes


class BoundedBuffer:
    """Buffer into which producers `put` and from which one consumer `take`s.

    Ordered: batches leave by ticket. At most `max_batches` of them are ready to leave; those that
    came early wait for a straggler and are limited in bytes, and in number with the others by
    `max_depth`, so that one slow batch does not stop the others. Unordered: batches leave as they
    come, but not before the previous epoch is complete. In both cases the batch that the consumer
    waits for is always accepted, however full the buffer is, so the bounds cannot deadlock.
    """

    def __init__(
        self,
        reorder: ReorderBuffer[ProducedBatch],
        *,
        max_batches: int,
        max_nbytes: int,
        max_depth: int = MAX_EARLY,
    ) -> None:
        self.ordered = reorder.ordered
        self.max_batches = max_batches
        self._max_nbytes = max_nbytes
        self._max_depth = max_depth
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._reorder = reorder
        error = ProducerError("a producer failed, and could not report it: see the cause")
        self._spare = Failure(error, None, -1, 0.0)
        self._stopped = False
        self._waiting = False
        self._blocked: list[int] = []  # keys of the producers that wait for room
        self.depth = 0
        self.depth_nbytes = 0

    def put(self, produced: ProducedBatch, key: int, *, row: StageRow) -> bool:
        """Put a batch under its ticket or epoch. Return False if the feed was stopped."""
        nbytes = produced.batch.nbytes if produced.batch else 0
        with self._lock:
            if self._full(key, nbytes):
                self._wait_for_room(key, nbytes, row=row)
            if self._stopped:
                return False
            self.depth += produced.batch is not None
            self.depth_nbytes += nbytes
            self._insert(produced, key)
        return True

    def end_epoch(self, epoch: int) -> None:
        """Note that one producer has put its whole epoch. The last producer starts the next
        epoch."""
        with self._lock:
            self._reorder.end_epoch(epoch)
            self._filled.notify()
            self._room.notify_all()

    def end(self) -> None:
        """Note that one producer has ended, for any reason."""
        with self._lock:
            self._filled.notify()  # first: what fails here has counted nothing
            self._reorder.end()

    def join(self) -> int:
        """Add a producer. Return the first epoch that it has to end."""
        with self._lock:
            return self._reorder.join()

    def leave(self, epoch: int) -> None:
        """Remove a producer, which has put all epochs before `epoch`, and no other."""
        with self._lock:
            self._filled.notify()
            self._reorder.leave(epoch)

    def want(self, epochs: int) -> None:
        """Set how many epochs the consumer waits for."""
        with self._lock:
            self._reorder.want(epochs)

    def fail(self, error: BaseException, ticket: int | None, *, epoch: int = -1) -> None:
        """Record a failure; the first one counts. The consumer meets it in its place, or when the
        grace time is over."""
        with self._lock:
            self._reorder.fail(error, ticket, epoch=epoch)
            self._filled.notify()

    def abandon(self, error: BaseException) -> None:
        """Record a failure that `fail` could not record: without the lock, and without memory if
        there is none."""
        self._spare.error.__cause__ = error
        found = self._spare
        with contextlib.suppress(BaseException):
            found = Failure(ProducerFailed("a producer", error), None, -1, 0.0)
        self._reorder.failure = found

    def skip(self, error: BaseException, ticket: int | None, *, epoch: int = -1) -> None:
        """Record an error that costs one record only; fail if there were too many of them."""
        with self._lock:
            self._reorder.skip(error, ticket, epoch=epoch)
            self._filled.notify()

    def take(self, timeout_s: float) -> ProducedBatch | None:
        """Return the next batch or end of epoch, or None at the end. Raise the failure, or Timeout
        after `timeout_s`."""
        with self._lock:
            ready = self._reorder.ready
            if not ready or self._reorder.failure is not None:
                deadline = time.perf_counter() + timeout_s
                while not (self._stopped or self._reorder.settled()):
                    self._wait_for_batch(deadline)
            produced = None if self._stopped else self._reorder.pop()
            if produced is None:
                return None
            if produced.batch is not None:
                self.depth -= 1
                self.depth_nbytes -= produced.batch.nbytes
            # Waking producers one by one would cost two switches a batch. Below half full, they are
            # woken for several batches at once.
            waiting = len(ready) if self.ordered else self.depth
            if self._blocked and (waiting * 2 <= self.max_batches or not ready):
                self._room.notify_all()
            return produced

    @property
    def ready(self) -> bool:
        """True if a batch can leave now."""
        with self._lock:
            return any(produced.batch is not None for produced in self._reorder.ready)

    def stop(self) -> None:
        """Stop the feed: every `put` and `take` returns at once, and the buffered batches are
        dropped."""
        self._stopped = True
        # A signal handler may call this inside our own `take`. This thread then holds the lock, and
        # the waits check the flag.
        if not self._lock.acquire(timeout=STOP_CHECK_S):
            return
        try:
            self._reorder.clear()
            self.depth = self.depth_nbytes = 0
            self._filled.notify_all()
            self._room.notify_all()
        finally:
            self._lock.release()

    @property
    def stopped(self) -> bool:
        """True once `stop` was called."""
        return self._stopped

    def _wait_for_batch(self, deadline: float) -> None:
        remaining = deadline - time.perf_counter()
        if remaining <= 0 and not self._reorder.failing:
            raise Timeout
        remaining = self._reorder.max_wait_s(remaining)
        self._waiting = True
        try:
            self._filled.wait(min(max(remaining, 0.0), STOP_CHECK_S))
        finally:
            self._waiting = False

    def _full(self, key: int, nbytes: int) -> bool:
        reorder = self._reorder
        if not self.depth or (key == reorder.next_key and not reorder.ready):
            return False
        if self.ordered and self.depth < self._max_depth:
            crowded = len(reorder.ready) >= self.max_batches
        else:
            crowded = self.depth >= self.max_batches
        return crowded or self.depth_nbytes + nbytes > self._max_nbytes

    def _wait_for_room(self, key: int, nbytes: int, *, row: StageRow) -> None:
        start = time.perf_counter()
        self._blocked.append(key)
        try:
            with waiting(ROOM):
                while self._full(key, nbytes) and not self._stopped:
                    self._room.wait(STOP_CHECK_S)
        finally:
            self._blocked.remove(key)
            row.wait_out_s += time.perf_counter() - start

    def _insert(self, produced: ProducedBatch, key: int) -> None:
        next_key = self._reorder.next_key
        self._reorder.insert(produced, key, stream=produced.stream)
        if self._reorder.next_key != next_key and self._reorder.next_key in self._blocked:
            self._room.notify_all()  # a producer that waits for room is next
        if self._waiting and key == next_key:
            self._filled.notify()
