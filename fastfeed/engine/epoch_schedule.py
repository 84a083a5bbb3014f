"""Epochs and runs: which one is delivered now, where `take` says that one is over, and how many may
be begun."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from fastfeed.core.batch import Batch
from fastfeed.core.collate import tail
from fastfeed.core.position import Start
from fastfeed.errors import FeedStopped, FeedTimeout, OptionError, SpecError

FOREVER = 2**40  # epochs


@dataclass(frozen=True)
class ResumePoint:
    """The epochs of a feed: the one to begin with, where each stream begins in it, the first one of
    the run that it belongs to, how many make a run (None: no end), whether `take` says so where an
    epoch ends, or only a run, and whether one run is all."""

    epoch: int = 0
    starts: dict[int, Start] = field(default_factory=dict)
    run_first: int = 0
    per_run: int | None = 1
    each: bool = False
    once: bool = False
    held: bool = False  # nothing is made before the first `take`
    pool: dict[str, Any] | None = None  # what a record-level shuffle had in its pool
    # by stream: records of a batch, where they stay as produced
    sizes: dict[int, int] = field(default_factory=dict)
    counts: tuple[int, int] = (0, 0)  # batches and records that were had before
    streams: int = 0  # of a callable, in all; 0: one for each producer

    @property
    def left(self) -> int | None:
        """Epochs until the run ends."""
        return None if self.per_run is None else max(0, self.run_first + self.per_run - self.epoch)


class EpochSchedule:
    """Counts epochs: those delivered, and those of which everything has come from the producers.

    `again`: whether the source has more than one.
    """

    def __init__(self, resume: ResumePoint, *, again: bool) -> None:
        if not resume.once and resume.left == 0:
            resume = replace(
                resume, run_first=resume.epoch
            )  # the run was complete: this is the next
        left = resume.left
        total = 1 if not again else left if resume.once and left is not None else FOREVER
        self.resume = resume
        self.epochs = range(resume.epoch, resume.epoch + total)
        self._at_once = total if left is None else min(total, left)
        # epochs that may be begun, from the first on
        self.allowed = 0 if resume.held else self._at_once
        self.asked = self.allowed  # epochs that somebody waits for; others are made ahead
        self.epoch = resume.epoch  # whose batches come now
        self.first = resume.run_first  # the first epoch of the run
        self.paused = False  # a run or an epoch has come to its end
        self.told = resume.held  # and whoever takes has heard so, or nobody has taken yet
        self.again = again
        self._ahead = 0  # epochs of the run after this one that are made from its beginning
        self._received = 0

    @property
    def over(self) -> bool:
        """Whether every epoch of the run has been delivered."""
        return self.resume.per_run is not None and self.epoch - self.first >= self.resume.per_run

    @property
    def may_read(self) -> bool:
        """Whether producers have more, or will."""
        return self._received < self.allowed

    def received(self) -> None:
        """All of an epoch has come."""
        self._received += 1

    def received_all(self) -> None:
        """Nothing more will ever come."""
        self._received = self.allowed

    def delivered(self) -> None:
        """All of an epoch has left, or is about to."""
        self.epoch += 1
        self.paused = self.again and not self.resume.once and (self.resume.each or self.over)

    def go_on(self) -> None:
        """The next run or epoch begins. Who comes for a second run will come for a third: it is
        made ahead."""
        self.paused = self.told = False
        self.allowed = max(self.allowed, self._at_once + self._ahead)
        self.asked = max(self.asked, self._at_once)
        if self.over:
            self.first = self.epoch
            per_run = self.resume.per_run or 1
            self.asked = max(self.asked, self.epoch - self.epochs.start + per_run)
            self.allowed = max(self.allowed, self.asked + per_run)

    def repeat(self) -> None:
        """Somebody will come for another run after the first: it is made ahead."""
        self._ahead = self.resume.per_run or 0
        if not self.told:
            self.allowed = max(self.allowed, self._at_once + self._ahead)

    def change(self, per_run: int | None, *, each: bool) -> None:
        """Another number of epochs that make a run (None: no end), and whether `take` says so where
        an epoch ends."""
        if (per_run, each) == (self.resume.per_run, self.resume.each):
            return
        self.resume = replace(self.resume, per_run=per_run, each=each)
        left = FOREVER if per_run is None else self.first + per_run - self.epochs.start
        self._at_once = max(self._at_once, left)
        if not self.told:
            self.allowed, self.asked = max(self.allowed, left), max(self.asked, left)

    def from_epoch(self, epoch: int, counts: tuple[int, int]) -> ResumePoint:
        """Where to go on with a whole epoch, when so many batches and records were had."""
        return replace(
            self.resume, epoch=epoch, run_first=self.first, starts={}, pool=None, counts=counts
        )


class PartialEpoch:
    """What is still wanted of the first epoch's items, where a run goes on in the middle."""

    def __init__(self, starts: dict[int, Start], *, ordered: bool) -> None:
        self._parts = {
            (stream, n): rows for stream, s in starts.items() for n, rows in s.part.items()
        }
        # The streams of a callable begin with the first item that is wanted; ordered sources know
        # which ones are.
        self._sift = {} if ordered else {n: s for n, s in starts.items() if s.again or s.done}

    def __bool__(self) -> bool:
        return bool(self._parts or self._sift)

    def of(self, batch: Batch, *, stream: int, item: int) -> Batch | None:
        """The records of an item that are wanted; None where none is."""
        if stream in self._sift and not self._sift[stream].wants(item):
            return None
        return tail(batch, self._parts.pop((stream, item), 0)) if self._parts else batch

    def clear(self) -> None:
        """The epoch is over: all is wanted."""
        self._parts.clear()
        self._sift.clear()


def no_batch() -> SpecError:
    """The error of a source that has nothing at all."""
    return SpecError(
        "the source ended before its first batch (batches of zero records are skipped): needed at "
        "least one record; is the iterator used up, or the path empty?"
    )


def never_filled(records: int, batch_size: int | None) -> OptionError:
    """The error of a source that is smaller than one batch, all of which last_batch="drop" would
    lose."""
    return OptionError(
        f"batch_size={batch_size} can never be filled: the source has {records} records and "
        'last_batch="drop"; lower batch_size or say last_batch="keep"'
    )


def stalled(limit_s: float, stacks: str) -> FeedTimeout:
    """The error of producers that make nothing any more."""
    return FeedTimeout(
        f"no batch came for {limit_s:g} s (stall_timeout_s). What the producers are "
        f"doing:\n{stacks}"
    )


def stopped() -> FeedStopped:
    """The error of a feed that was stopped by its owner."""
    return FeedStopped("the runner was stopped: make a new one to go on")
