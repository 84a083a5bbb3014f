"""Order in which batches leave, and how a feed ends. No locks and no waits, so that every buffer
can use it."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

from fastfeed.core.batch import Batch

# Batches produced before a failure are still delivered for this long; the consumer must get the
# failure within a second.
FAILURE_GRACE_S = 0.5
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
    previous epoch is complete (unordered). Those of streams in `suspects`, which changes, stay."""

    def __init__(
        self, producers: int, *, ordered: bool, error_limit: int = 0, suspects: Collection[int] = ()
    ) -> None:
        self.ordered = ordered
        self._suspects = suspects
        self._held: list[tuple[T | ProducedBatch, int, int]] = []  # of suspects, with key, stream
        self._errors_left = error_limit
        self.ready: deque[T | ProducedBatch] = deque()  # to be delivered: batches, and END_OF_EPOCH
        # by ticket, or by epoch where there are no tickets
        self.early: dict[int, list[T | ProducedBatch]] = {}
        self.next_key = 0  # the ticket, or the epoch, that leaves next
        self.failure: Failure | None = None
        # Number of epochs that the consumer waits for. Others are produced ahead, and a failure in
        # them stays silent.
        self._wanted = 2**62
        self._epochs_done = 0  # epochs that have left completely
        self._producers = producers
        self._open = producers  # producers that have not ended
        self._finished: dict[int, int] = {}  # by epoch: producers that have ended it

    def insert(self, produced: T | ProducedBatch, key: int, *, stream: int = -1) -> None:
        """Insert a batch of a stream under its ticket or epoch."""
        if self._held or stream in self._suspects:
            self._held.append((produced, key, stream))
            self.release()
            return
        if key != self.next_key:
            self.early.setdefault(key, []).append(produced)
            return
        self.ready.append(produced)
        if self.ordered:
            self.next_key += 1
            while self.next_key in self.early:
                self.ready.extend(self.early.pop(self.next_key))
                self.next_key += 1

    def release(self) -> None:
        """Insert the batches that were held back, of streams that are no suspects any more."""
        suspects = set(self._suspects)  # another thread changes them
        held, self._held = self._held, []
        for one in held:
            if one[2] in suspects:
                self._held.append(one)
            elif one[1] != self.next_key:
                self.early.setdefault(one[1], []).append(one[0])
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
            self.ready.extend(self.early.pop(self.next_key, ()))

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

    def forget_failure(self) -> None:
        """Drop the failure, whose traceback keeps the frames of the consumer alive."""
        self.failure = None

    def clear(self) -> None:
        """Drop everything that was produced."""
        self.ready.clear()
        self.early.clear()
        self._held.clear()
