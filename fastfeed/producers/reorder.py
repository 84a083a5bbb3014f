"""The order in which batches leave, and how a feed ends: no locks and no waiting, so that every
buffer can use it."""

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
    """A batch (None: it had no records) of a stream, its place for error texts, and the number of
    its item in the epoch."""

    batch: Batch | None
    stream: int
    place: str
    number: int = 0


END_OF_EPOCH = ProducedBatch(None, -1, "")


class Timeout(Exception):
    """Nothing arrived in time."""


@dataclass(frozen=True)
class Failure:
    """The error that ends a producer; with a ticket where the order is known, and the position of
    its epoch, or -1 if it concerns all."""

    error: BaseException
    ticket: int | None
    epoch: int
    time_s: float


T = TypeVar("T")


class ReorderBuffer(Generic[T]):
    """Puts batches in order. Ordered: they leave by ticket. Unordered: as they come, but none
    before the epoch ahead of it is complete."""

    def __init__(self, producers: int, *, ordered: bool, error_limit: int = 0) -> None:
        self.ordered = ordered
        self._errors_left = error_limit
        self.ready: deque[T | ProducedBatch] = deque()  # to be delivered: batches, and END_OF_EPOCH
        # by ticket, or by epoch where there are no tickets
        self.early: dict[int, list[T | ProducedBatch]] = {}
        self.turn = 0  # the ticket, or the epoch, that leaves next
        self.failure: Failure | None = None
        # epochs that the consumer waits for: others are made ahead, and may fail unnoticed
        self._asked = 2**62
        self._left = 0  # epochs of which all has left
        self._producers = producers
        self._open = producers  # producers that have not ended
        self._finished: dict[int, int] = {}  # how many producers have ended an epoch

    def insert(self, made: T | ProducedBatch, key: int) -> None:
        """Add a batch under its ticket or epoch."""
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
        """Note that one producer has put everything of this epoch; the last one lets the next epoch
        pass."""
        if self.ordered:  # the end of an epoch has a ticket
            return
        self._finished[epoch] = self._finished.get(epoch, 0) + 1
        while self._finished.get(self.turn, 0) == self._producers:
            del self._finished[self.turn]
            self.turn += 1
            self.ready.append(END_OF_EPOCH)
            self.ready.extend(self.early.pop(self.turn, ()))

    def end(self) -> None:
        """Note that one producer has ended, for any reason."""
        self._open -= 1

    def ask(self, epochs: int) -> None:
        """Note that the consumer waits for `epochs` epochs; a failure in the last of them has its
        grace time from now on."""
        if self.failure is not None and self._asked <= self.failure.epoch < epochs:
            self.failure = replace(self.failure, time_s=time.perf_counter())
        self._asked = epochs

    def fail(self, error: BaseException, ticket: int | None, *, epoch: int = -1) -> None:
        """Note a failure. The first one counts, unless it lies in an epoch that was not requested,
        after this one.

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
        """Note an error that costs only one record, unless there were too many of them."""
        self._errors_left -= 1
        if self._errors_left < 0:
            self.fail(error, ticket, epoch=epoch)
        else:
            LOG.warning("skipped: %s", error)

    def settled(self) -> bool:
        """Return True if there is a batch to deliver, or none will ever come. Raise the failure
        when its time has come."""
        failure = self.failure
        if failure is not None and failure.epoch < self._asked:
            last = not self.ready and (self._open == 0 or failure.ticket == self.turn)
            # the end of an epoch does not mean that no failure follows
            at_end = (
                bool(self.ready) and self.ready[0] is END_OF_EPOCH and failure.epoch <= self._left
            )
            if last or at_end or time.perf_counter() - failure.time_s > GRACE_S:
                raise failure.error
        return bool(self.ready) or (self._open == 0 and failure is None)

    def pop(self) -> T | ProducedBatch | None:
        """Return what leaves next; None after the last."""
        if not self.ready:
            return None
        made = self.ready.popleft()
        self._left += made is END_OF_EPOCH
        return made

    def patience_s(self, remaining_s: float) -> float:
        """Return how long to wait at most, with `remaining_s` left: not beyond the grace time of a
        failure."""
        if self.failure is None or self.failure.epoch >= self._asked:
            return remaining_s
        return min(remaining_s, self.failure.time_s + GRACE_S - time.perf_counter() + 0.001)

    def clear(self) -> None:
        """Release everything that was made."""
        self.ready.clear()
        self.early.clear()
