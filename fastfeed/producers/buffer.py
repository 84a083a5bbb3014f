"""The bounded buffer between producers and consumer: in order, by epoch, limited in bytes, and free
of deadlocks."""

from __future__ import annotations

import threading
import time

from fastfeed.core.stats import StageRow
from fastfeed.producers.reorder import ProducedBatch, ReorderBuffer, Timeout

MOST_EARLY = 4096  # batches smaller than those that the limit in bytes is meant for
POLL_S = 0.2  # no wait is longer without a check of the flag


class BoundedBuffer:
    """Producers `put`, one consumer `take`s.

    Ordered: batches leave by ticket. At most `max_batches` are ready to leave; those that arrived
    early wait for a straggler and are limited in bytes, so that one slow batch does not stop the
    others. Unordered: batches leave as they come, but none before the epoch ahead of it is
    complete. In both cases the batch that the consumer waits for always gets in, however full the
    buffer is; so the bounds cannot deadlock.
    """

    def __init__(
        self, sequence: ReorderBuffer[ProducedBatch], *, max_batches: int, max_nbytes: int
    ) -> None:
        self.ordered = sequence.ordered
        self._max_batches = max_batches
        self._max_nbytes = max_nbytes
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._sequence = sequence
        self._stopped = False
        self._waiting = False
        self._blocked: list[int] = []  # keys of batches that wait for room
        self.depth = 0
        self.depth_nbytes = 0

    def put(self, made: ProducedBatch, key: int, *, row: StageRow) -> bool:
        """Hand over a batch under its ticket or epoch; return False if the feed was stopped."""
        nbytes = made.batch.nbytes if made.batch else 0
        with self._lock:
            if self._full(key, nbytes) and not self._wait_for_room(key, nbytes, row=row):
                return False
            if self._stopped:
                return False
            self.depth += made.batch is not None
            self.depth_nbytes += nbytes
            self._insert(made, key)
        return True

    def end_epoch(self, epoch: int) -> None:
        """Note that one producer has put everything of this epoch; the last one lets the next epoch
        pass."""
        with self._lock:
            self._sequence.end_epoch(epoch)
            self._filled.notify()
            self._room.notify_all()

    def end(self) -> None:
        """Note that one producer has ended, for any reason."""
        with self._lock:
            self._sequence.end()
            self._filled.notify()

    def ask(self, epochs: int) -> None:
        """Note that the consumer waits for `epochs` epochs."""
        with self._lock:
            self._sequence.ask(epochs)

    def fail(self, error: BaseException, ticket: int | None, *, epoch: int = -1) -> None:
        """Note a failure. The first one counts; the consumer meets it in its place, or at the
        latest after the grace time."""
        with self._lock:
            self._sequence.fail(error, ticket, epoch=epoch)
            self._filled.notify()

    def skip(self, error: BaseException, ticket: int | None, *, epoch: int = -1) -> None:
        """Note an error that costs only one record, unless there were too many of them."""
        with self._lock:
            self._sequence.skip(error, ticket, epoch=epoch)
            self._filled.notify()

    def take(self, timeout_s: float) -> ProducedBatch | None:
        """Return the next batch or end of epoch; None at the end. Raise the failure, or Timeout
        after `timeout_s`."""
        with self._lock:
            ready = self._sequence.ready
            if not ready or self._sequence.failure is not None:
                deadline = time.perf_counter() + timeout_s
                while not (self._stopped or self._sequence.settled()):
                    self._wait_for_batch(deadline)
            made = None if self._stopped else self._sequence.pop()
            if made is None:
                return None
            if made.batch is not None:
                self.depth -= 1
                self.depth_nbytes -= made.batch.nbytes
            # Waking producers one by one would cost two switches a batch: they are woken together,
            # below half full.
            waiting = len(ready) if self.ordered else self.depth
            if self._blocked and (waiting * 2 <= self._max_batches or not ready):
                self._room.notify_all()
            return made

    @property
    def ready(self) -> bool:
        """True if a batch can leave now."""
        with self._lock:
            return any(made.batch is not None for made in self._sequence.ready)

    def stop(self) -> None:
        """Stop: every `put` and `take` returns at once, and batches are released."""
        self._stopped = True
        # A signal handler may call this inside `take` of this thread, which holds the lock; waits
        # check the flag.
        if not self._lock.acquire(timeout=POLL_S):
            return
        try:
            self._sequence.clear()
            self.depth = self.depth_nbytes = 0
            self._filled.notify_all()
            self._room.notify_all()
        finally:
            self._lock.release()

    @property
    def stopped(self) -> bool:
        """True if `stop` was called."""
        return self._stopped

    def _wait_for_batch(self, deadline: float) -> None:
        remaining = deadline - time.perf_counter()
        if remaining <= 0 and self._sequence.failure is None:
            raise Timeout
        remaining = self._sequence.patience_s(remaining)
        self._waiting = True
        try:
            self._filled.wait(min(max(remaining, 0.0), POLL_S))
        finally:
            self._waiting = False

    def _full(self, key: int, nbytes: int) -> bool:
        sequence = self._sequence
        if not self.depth or (key == sequence.turn and not sequence.ready):
            return False
        if self.ordered and len(sequence.early) < MOST_EARLY:
            crowded = len(sequence.ready) >= self._max_batches
        else:
            crowded = self.depth >= self._max_batches
        return crowded or self.depth_nbytes + nbytes > self._max_nbytes

    def _wait_for_room(self, key: int, nbytes: int, *, row: StageRow) -> bool:
        start = time.perf_counter()
        self._blocked.append(key)
        try:
            while self._full(key, nbytes) and not self._stopped:
                self._room.wait(POLL_S)
        finally:
            self._blocked.remove(key)
            row.wait_out_s += time.perf_counter() - start
        return not self._stopped

    def _insert(self, made: ProducedBatch, key: int) -> None:
        turn = self._sequence.turn
        self._sequence.insert(made, key)
        if self._sequence.turn != turn and self._sequence.turn in self._blocked:
            self._room.notify_all()  # it may be the turn of a batch that waits for room
        if self._waiting and key == turn:
            self._filled.notify()
