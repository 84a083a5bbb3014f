"""The order in which batches leave, and how a feed ends: no locks, no waiting, so that every buffer
can share it."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

from fastfeed.core.batch import Batch

# After a failure the batches made before it are still delivered, but no longer than this: the
# consumer must know within a second.
GRACE_S = 0.5


LOG = logging.getLogger("fastfeed")


class ProducedBatch(NamedTuple):
    """A batch (None: it had no records) of a stream, its place for error texts, and its item's
    number in the epoch."""

    batch: Batch | None
    stream: int
    place: str
    number: int = 0


END_OF_EPOCH = ProducedBatch(None, -1, "")


class Timeout(Exception):
    """Nothing came in time."""


@dataclass(frozen=True)
class Failure:
    """What a producer could not go on for; with a ticket where the order is known, and the position
    of its epoch, or -1 where it concerns them all."""

    error: BaseException
    ticket: int | None
    epoch: int
    time_s: float


T = TypeVar("T")


class ReorderBuffer(Generic[T]):
    """Ordered: batches leave by ticket. Unordered: as they come, but none before the epoch ahead of
    it is complete."""

    def __init__(self, producers: int, *, ordered: bool, error_limit: int = 0) -> None:
        self.ordered = ordered
        self._errors_left = error_limit
        self.ready: deque[T | ProducedBatch] = deque()  # batches, and END_OF_EPOCH
        # by ticket, or by epoch where there are no tickets
        self.early: dict[int, list[T | ProducedBatch]] = {}
        self.turn = 0  # the ticket, or the epoch, that leaves now
        self.failure: Failure | None = None
        # epochs that somebody waits for: others are made ahead, and may fail there unheard
        self._asked = 2**62
        self._left = 0  # epochs that have left to the end
        self._producers = producers
        self._open = producers  # producers that have not ended
        self._finished: dict[int, int] = {}  # how many producers ended an epoch

    def insert(self, made: T | ProducedBatch, key: int) -> None:
        """A batch under its ticket or epoch."""
        if key != self.turn:
            self.early.setdefault(key, []).append(made)
            return
        self.ready.append(made)
        if self.ordered:
            self.turn += 1
            while self.turn in self.early:
                self.ready.extend(self.early.pop(self.turn))
                self.turn += 1

    def end_epoch(self, epoch: int) -> None:
        """One producer has put everything that it has in this epoch; the last one lets the next
        epoch pass."""
        if self.ordered:  # its end has a ticket
            return
        self._finished[epoch] = self._finished.get(epoch, 0) + 1
        while self._finished.get(self.turn, 0) == self._producers:
            del self._finished[self.turn]
            self.turn += 1
            self.ready.append(END_OF_EPOCH)
            self.ready.extend(self.early.pop(self.turn, ()))

    def end(self) -> None:
        """One producer has ended, for whatever reason."""
        self._open -= 1

    def ask(self, epochs: int) -> None:
        """Somebody waits for so many epochs now; a failure in the last of them has time from now
        on."""
        if self.failure is not None and self._asked <= self.failure.epoch < epochs:
            self.failure = replace(self.failure, time_s=time.perf_counter())
        self._asked = epochs

    def fail(self, error: BaseException, ticket: int | None, *, epoch: int = -1) -> None:
        """The first failure counts, unless it lies in an epoch that nobody asked for, behind this
        one.

        The consumer meets it in its place, or at the latest after the grace time.
        """
        unheard = (
            self.failure is not None
            and self.failure.epoch >= self._asked
            and self.failure.epoch > epoch
        )
        if self.failure is None or unheard:
            self.failure = Failure(error, ticket, epoch, time.perf_counter())

    def skip(self, error: BaseException, ticket: int | None, *, epoch: int = -1) -> None:
        """An error that costs one record only, unless there were too many of them already."""
        self._errors_left -= 1
        if self._errors_left < 0:
            self.fail(error, ticket, epoch=epoch)
        else:
            LOG.warning("skipped: %s", error)

    def settled(self) -> bool:
        """Whether there is a batch to deliver, or none will ever come; raises the failure when its
        time has come."""
        failure = self.failure
        if failure is not None and failure.epoch < self._asked:
            last = not self.ready and (self._open == 0 or failure.ticket == self.turn)
            # An end of an epoch must not be taken for the end of all that there is to say about it.
            at_end = (
                bool(self.ready) and self.ready[0] is END_OF_EPOCH and failure.epoch <= self._left
            )
            if last or at_end or time.perf_counter() - failure.time_s > GRACE_S:
                raise failure.error
        return bool(self.ready) or (self._open == 0 and failure is None)

    def pop(self) -> T | ProducedBatch | None:
        """What leaves now; None where all has left."""
        if not self.ready:
            return None
        made = self.ready.popleft()
        self._left += made is END_OF_EPOCH
        return made

    def patience_s(self, remaining_s: float) -> float:
        """How long to wait at most, when `remaining_s` are left: a failure does not wait longer
        than its grace."""
        if self.failure is None or self.failure.epoch >= self._asked:
            return remaining_s
        return min(remaining_s, self.failure.time_s + GRACE_S - time.perf_counter() + 0.001)

    def clear(self) -> None:
        """Lets everything go that was made."""
        self.ready.clear()
        self.early.clear()
