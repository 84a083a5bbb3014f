"""Order in which batches leave, and how a feed ends: without locks and waits for every kind of
producer, and as a bounded buffer for threads."""

from __future__ import annotations

import contextlib
import heapq
import logging
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

from fastfeed.core.batch import Batch
from fastfeed.core.stats import StageRow
from fastfeed.core.status import ROOM, waiting
from fastfeed.errors import ProducerError, ProducerFailed
from fastfeed.source.stream_comparison import FIRST

# Batches produced before a failure are still delivered for this long; the consumer must get the
# failure within a second.
FAILURE_GRACE_S = 0.5
MAX_EARLY = 4096  # batches; a bound for those too small for the limit in bytes
STOP_CHECK_S = 0.2  # no wait is longer without a check of the stop flag


LOG = logging.getLogger("fastfeed")


class ProducedBatch(NamedTuple):
    """Batch of a stream (None: it had no records), its place for error texts, and its item's number
    in the epoch."""

    batch: Batch | None
    stream: int
    place: str
    number: int = 0


END_OF_EPOCH = ProducedBatch(None, -1, "")


class Timeout(Exception):
    """No batch arrived in time."""


@dataclass(frozen=True)
class Failure:
    """Error that stopped a producer, with its ticket if the order is known, and the position of its
    epoch, or -1 if it concerns all epochs."""

    error: BaseException
    ticket: int | None
    epoch: int
    time_s: float


T = TypeVar("T")


class ReorderBuffer(Generic[T]):
    """Buffer from which batches leave by ticket (ordered), or as they come but not before the
    previous epoch is complete (unordered). Those of streams in `suspects`, which changes, stay.

    Ordered: a batch of the epoch that leaves may overtake those that are missing, up to `window`
    places before its own, and so none leaves more than `window` batches after its place. `gaps`
    are the places that left before the first ticket did: `StreamStart.gaps`.
    """

    def __init__(
        self,
        producers: int,
        *,
        ordered: bool,
        window: int = 0,
        gaps: Sequence[int] = (),
        error_limit: int = 0,
        suspects: Collection[int] = (),
    ) -> None:
        self.ordered = ordered
        self._window, self._gaps = window, gaps
        self._suspects = suspects
        self._held: list[tuple[T | ProducedBatch, int, int]] = []  # of suspects, with key, stream
        self._errors_left = error_limit
        self.ready: deque[T | ProducedBatch] = deque()  # to be delivered: batches, and END_OF_EPOCH
        # by ticket, or by epoch where there are no tickets
        self._early: dict[int, list[T | ProducedBatch]] = {}
        self.next_key = 0  # the ticket, or the epoch, that leaves next
        # With a window: a heap of what waits for lower tickets, as (ticket, epoch, batch); tickets
        # above `next_key` that have left; and the epoch that leaves.
        self._beyond: list[tuple[int, int, T | ProducedBatch]] = []
        self._overtook: set[int] = set()
        self._epoch = 0
        self.failure: Failure | None = None
        # Number of epochs that the consumer waits for. Others are produced ahead, and a failure in
        # them stays silent.
        self._wanted = 2**62
        self._epochs_done = 0  # epochs that have left completely
        self._producers = producers
        self._open = producers  # producers that have not ended
        self._finished: dict[int, int] = {}  # by epoch: producers that have ended it

    def insert(
        self, produced: T | ProducedBatch, key: int, *, stream: int = -1, epoch: int = 0
    ) -> None:
        """Insert a batch of a stream under its ticket, which lies in `epoch`, or under its epoch
        (`key`)."""
        if self._held or stream in self._suspects:
            self._held.append((produced, key, stream))
            self.release()
            return
        if self._window:
            # the end of an epoch counts with the next one, so it overtakes nothing
            self._line_up(produced, key, epoch=epoch + (produced is END_OF_EPOCH))
            return
        if key != self.next_key:
            self._early.setdefault(key, []).append(produced)
            return
        self.ready.append(produced)
        if self.ordered:
            self.next_key += 1
            while self.next_key in self._early:
                self.ready.extend(self._early.pop(self.next_key))
                self.next_key += 1

    def _line_up(self, produced: T | ProducedBatch, ticket: int, *, epoch: int) -> None:
        """Let a batch leave if it may, and those that it has held up."""
        heapq.heappush(self._beyond, (ticket, epoch, produced))
        # where the lowest ticket may not leave, no other may
        while self._beyond and self._may_leave(*self._beyond[0][:2]):
            ticket, epoch, produced = heapq.heappop(self._beyond)
            # else it came twice: an exception of a signal handler interrupted the first call
            if ticket >= self.next_key and ticket not in self._overtook:
                self.ready.append(produced)
                self._overtook.add(ticket)
                self._epoch = epoch
            while self.next_key in self._overtook:
                self.next_key += 1
                self._overtook.discard(self.next_key - 1)

    def _may_leave(self, key: int, epoch: int) -> bool:
        if not self._window:
            return key == self.next_key
        ahead = self._place(key) - self._place(self.next_key)
        return key <= self.next_key or (ahead <= self._window and epoch == self._epoch)

    def _place(self, ticket: int) -> int:
        return ticket + bisect_right(self._gaps, ticket)

    @property
    def waiting(self) -> int:
        """Batches that wait for lower tickets, or epochs of which some wait for the one before."""
        return len(self._early) + len(self._beyond)

    def needs(self, stream: int) -> bool:
        """Return True if a batch of a suspect must be taken in: the comparison makes no progress
        without the first few of each stream."""
        return sum(one[2] == stream for one in self._held) < FIRST

    def release(self) -> None:
        """Insert the batches that were held back, of streams that are no suspects any more."""
        suspects = set(self._suspects)  # another thread changes them
        held, self._held = self._held, []
        for one in held:
            if one[2] in suspects:
                self._held.append(one)
            elif one[1] != self.next_key:
                self._early.setdefault(one[1], []).append(one[0])
            else:
                self.ready.append(one[0])

    def end_epoch(self, epoch: int) -> None:
        """Note that one producer has put its whole epoch. The last producer starts the next
        epoch."""
        if self.ordered:  # the end of an epoch has a ticket
            return
        self._finished[epoch] = self._finished.get(epoch, 0) + 1
        self._end_epochs()

    def end(self) -> None:
        """Note that one producer has ended, for any reason."""
        self._open -= 1

    def join(self) -> int:
        """Add a producer. Return the first epoch that it has to end."""
        self._producers += 1
        self._open += 1
        return self._epochs_done if self.ordered else self.next_key

    def leave(self, epoch: int) -> None:
        """Remove a producer, which has put all epochs before `epoch`, and no other."""
        self._producers -= 1
        self._open -= 1
        for ended in [n for n in self._finished if n < epoch]:
            self._finished[ended] -= 1
        self._end_epochs()

    def _end_epochs(self) -> None:
        while not self.ordered and self._finished.get(self.next_key, 0) == self._producers:
            self._finished.pop(self.next_key, None)
            self.next_key += 1
            self.ready.append(END_OF_EPOCH)
            self.ready.extend(self._early.pop(self.next_key, ()))

    def want(self, epochs: int) -> None:
        """Set how many epochs the consumer waits for. The grace time of a failure in a newly wanted
        epoch starts now."""
        if self.failure is not None and self._wanted <= self.failure.epoch < epochs:
            self.failure = replace(self.failure, time_s=time.perf_counter())
        self._wanted = epochs

    def fail(self, error: BaseException, ticket: int | None, *, epoch: int = -1) -> None:
        """Record a failure. The first one counts, unless it lies in an unwanted epoch behind the
        epoch of this one.

        The consumer meets it in its place, or when the grace time is over.
        """
        superseded = (
            self.failure is not None
            and self.failure.epoch >= self._wanted
            and self.failure.epoch > epoch
        )
        if self.failure is None or superseded:
            self.failure = Failure(error, ticket, epoch, time.perf_counter())

    def skip(self, error: BaseException, ticket: int | None, *, epoch: int = -1) -> None:
        """Record an error that costs one record only; fail if there were too many of them."""
        self._errors_left -= 1
        if self._errors_left < 0:
            self.fail(error, ticket, epoch=epoch)
        else:
            LOG.warning("skipped: %s", error)

    def settled(self) -> bool:
        """Return True if a batch is ready or none will ever come. Raise the failure when it is
        due."""
        failure = self.failure
        if failure is not None and failure.epoch < self._wanted:
            last = not self.ready and (self._open == 0 or failure.ticket == self.next_key)
            # The end of an epoch must not hide a failure that belongs to that epoch.
            at_end = (
                bool(self.ready)
                and self.ready[0] is END_OF_EPOCH
                and failure.epoch <= self._epochs_done
            )
            if last or at_end or time.perf_counter() - failure.time_s > FAILURE_GRACE_S:
                raise failure.error
        return bool(self.ready) or (self._open == 0 and not self.failing)

    @property
    def failing(self) -> bool:
        """True if there is a failure in an epoch that the consumer waits for."""
        return self.failure is not None and self.failure.epoch < self._wanted

    def pop(self) -> T | ProducedBatch | None:
        """Remove and return what leaves next, or None if there is nothing."""
        if not self.ready:
            return None
        produced = self.ready.popleft()
        self._epochs_done += produced is END_OF_EPOCH
        return produced

    def max_wait_s(self, remaining_s: float) -> float:
        """Return the longest wait, given `remaining_s`: no longer than the grace time of a
        failure."""
        if self.failure is None or not self.failing:
            return remaining_s
        return min(remaining_s, self.failure.time_s + FAILURE_GRACE_S - time.perf_counter() + 0.001)

    def clear(self) -> None:
        """Drop everything that was produced."""
        self.ready.clear()
        self._early.clear()
        self._beyond.clear()
        self._held.clear()


class BoundedBuffer(ReorderBuffer[ProducedBatch]):
    """Buffer into which producers `put` and from which one consumer `take`s, in threads. What
    changes the order itself is called inside `changing`.

    Ordered: batches leave by ticket, or in a window of it. At most `max_batches` of them are ready
    to leave; those that came early wait for a straggler and are limited in bytes, and in number
    with the others by `max_depth`, so that one slow batch does not stop the others. Unordered:
    batches leave as they come, but not before the previous epoch is complete. In both cases the
    batch that the consumer waits for is always accepted, however full the buffer is, so the bounds
    cannot deadlock.
    """

    def __init__(
        self,
        producers: int,
        *,
        max_batches: int,
        max_nbytes: int,
        max_depth: int = MAX_EARLY,
        **order: Any,
    ) -> None:
        super().__init__(producers, **order)
        self.max_batches = max_batches
        self._max_nbytes = max_nbytes
        self._max_depth = max_depth
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        error = ProducerError("a producer failed, and could not report it: see the cause")
        self._spare = Failure(error, None, -1, 0.0)
        self.stopped = False
        self._waiting = False
        self._blocked: list[int] = []  # keys of the producers that wait for room
        self.depth = 0
        self.depth_nbytes = 0

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock, and wake all who wait, to see what has changed."""
        with self._lock:
            self._filled.notify()  # first: what fails here has changed nothing
            self._room.notify_all()
            yield

    def put(self, produced: ProducedBatch, key: int, *, row: StageRow, epoch: int = 0) -> bool:
        """Put a batch under its ticket, which lies in `epoch`, or under its epoch (`key`). Return
        False if the feed was stopped."""
        nbytes = produced.batch.nbytes if produced.batch else 0
        with self._lock:
            if self._full(key, nbytes, epoch=epoch, stream=produced.stream):
                self._wait_for_room(key, nbytes, row=row, epoch=epoch, stream=produced.stream)
            if self.stopped:
                return False
            self.depth += produced.batch is not None
            self.depth_nbytes += nbytes
            self._add(produced, key, epoch=epoch)
        return True

    def abandon(self, error: BaseException) -> None:
        """Record a failure that `fail` could not record: without the lock, and without memory if
        there is none."""
        self._spare.error.__cause__ = error
        found = self._spare
        with contextlib.suppress(BaseException):
            found = Failure(ProducerFailed("a producer", error), None, -1, 0.0)
        self.failure = found

    def take(self, timeout_s: float) -> ProducedBatch | None:
        """Return the next batch or end of epoch, or None at the end. Raise the failure, or Timeout
        after `timeout_s`."""
        with self._lock:
            ready = self.ready
            if not ready or self.failure is not None:
                deadline = time.perf_counter() + timeout_s
                while not (self.stopped or self.settled()):
                    self._wait_for_batch(deadline)
            produced = None if self.stopped else self.pop()
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
    def can_take(self) -> bool:
        """True if a batch can leave now."""
        with self._lock:
            return any(produced.batch is not None for produced in self.ready)

    def stop(self) -> None:
        """Stop the feed: every `put` and `take` returns at once, and the buffered batches are
        dropped."""
        self.stopped = True
        # A signal handler may call this inside our own `take`. This thread then holds the lock, and
        # the waits check the flag.
        if not self._lock.acquire(timeout=STOP_CHECK_S):
            return
        try:
            self.clear()
            self.depth = self.depth_nbytes = 0
            self._filled.notify_all()
            self._room.notify_all()
        finally:
            self._lock.release()

    def _wait_for_batch(self, deadline: float) -> None:
        remaining = deadline - time.perf_counter()
        if remaining <= 0 and not self.failing:
            raise Timeout
        remaining = self.max_wait_s(remaining)
        self._waiting = True
        try:
            self._filled.wait(min(max(remaining, 0.0), STOP_CHECK_S))
        finally:
            self._waiting = False

    def _full(self, key: int, nbytes: int, *, epoch: int, stream: int) -> bool:
        if stream in self._suspects:
            return not self.needs(stream)
        if not self.depth or (not self.ready and self._may_leave(key, epoch)):
            return False
        if self.ordered and self.depth < self._max_depth:
            crowded = len(self.ready) >= self.max_batches
        else:
            crowded = self.depth >= self.max_batches
        return crowded or self.depth_nbytes + nbytes > self._max_nbytes

    def _wait_for_room(
        self, key: int, nbytes: int, *, row: StageRow, epoch: int, stream: int
    ) -> None:
        start = time.perf_counter()
        self._blocked.append(key)
        try:
            with waiting(ROOM):
                while not self.stopped and self._full(key, nbytes, epoch=epoch, stream=stream):
                    self._room.wait(STOP_CHECK_S)
        finally:
            self._blocked.remove(key)
            row.wait_out_s += time.perf_counter() - start

    def _add(self, produced: ProducedBatch, key: int, *, epoch: int) -> None:
        next_key = self.next_key
        self.insert(produced, key, stream=produced.stream, epoch=epoch)
        if self.next_key != next_key and self.next_key in self._blocked:
            self._room.notify_all()  # a producer that waits for room is next
        if self._waiting and self.ready:
            self._filled.notify()
