"""Epochs and runs of a feed: which epoch is delivered, where a run ends, and how many epochs the
producers may begin."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from fastfeed.core.batch import Batch
from fastfeed.core.collate import tail
from fastfeed.core.position import StreamStart
from fastfeed.source.epoch_ends import EpochEnds

FOREVER = 2**40  # epochs


@dataclass(frozen=True)
class ResumePoint:
    """Start of a feed and length of its runs."""

    epoch: int = 0
    starts: dict[int, StreamStart] = field(default_factory=dict)  # in that epoch, by stream
    run_first: int = 0  # first epoch of the run that it belongs to
    per_run: int | None = 1  # epochs of a run; None: no end
    each: bool = False  # `take` returns None at the end of each epoch, not only of a run
    once: bool = False  # there is one run only
    held: bool = False  # the producers make nothing before the first `take`
    pool: dict[str, Any] | None = None  # of a record-level shuffle
    # records of a batch, by stream, where batches stay as they were produced
    sizes: dict[int, int] = field(default_factory=dict)
    counts: tuple[int, int] = (0, 0)  # batches and records delivered before
    streams: int = 0  # of a callable, in all; 0: one for each producer
    # of a job whose ranks share out the batches: what is left of its epochs
    claims: dict[str, Any] | None = None
    ends: EpochEnds | None = None  # of a data set that changes between epochs

    @property
    def left(self) -> int | None:
        """Epochs until the run ends; None: it does not."""
        return None if self.per_run is None else max(0, self.run_first + self.per_run - self.epoch)


class EpochSchedule:
    """Counts the epochs that were delivered, and those of which all has come from the producers.

    `again`: the source has more than one epoch.
    """

    def __init__(self, resume: ResumePoint, *, again: bool) -> None:
        left = resume.left
        total = left if resume.once and left is not None else FOREVER
        if not again:
            total = int(left != 0)
        self.resume = resume
        self.epochs = range(resume.epoch, resume.epoch + total)
        self._at_once = total if left is None else min(total, left)
        # epochs that may be begun, from the first on
        self.allowed = 0 if resume.held else self._at_once
        self.asked = self.allowed  # epochs that the consumer waits for; others are made ahead
        self.epoch = resume.epoch  # the one that is delivered now
        self.first = resume.run_first  # the first epoch of the run
        # a run or an epoch has ended; a run may be restored at its end
        self.paused = again and left == 0
        # and `take` has returned None for it, or was not called yet
        self.told = resume.held and not self.paused
        self._owes_end = False  # the next run was begun before `take` has returned None
        self.again = again
        self._ahead = 0  # epochs of the next run that are made from the beginning of this one
        self._received = 0

    @property
    def over(self) -> bool:
        """True if every epoch of the run was delivered."""
        return self.resume.per_run is not None and self.epoch - self.first >= self.resume.per_run

    @property
    def may_be_empty(self) -> bool:
        """True while only the rest of a restored epoch or run has ended, which may be nothing."""
        begun, resume = self.epoch - self.epochs.start, self.resume
        return begun <= 1 if resume.starts else not begun and resume.left == 0

    @property
    def state_first(self) -> int:
        """The first epoch of the run that the next `take` belongs to."""
        return self.epoch if self.told and self.over else self.first

    @property
    def may_read(self) -> bool:
        """True if producers have more input in this run, or will have."""
        return self._received < self.allowed

    @property
    def granted(self) -> int:
        """Epochs that may be begun by now. Where a data set changes between two of them, only one
        is made ahead: it is the next one also if this one is left early."""
        ahead = self.epoch - self.epochs.start + 2
        return self.allowed if self.resume.ends is None else min(self.allowed, ahead)

    def received(self) -> None:
        """Count an epoch of which all has come from the producers."""
        self._received += 1

    def received_all(self) -> None:
        """Note that nothing more will come."""
        self._received = self.allowed

    def delivered(self) -> None:
        """Count an epoch of which all was delivered, or is about to be."""
        self.epoch += 1
        self.paused = self.again and not self.resume.once and (self.resume.each or self.over)

    def go_on(self) -> None:
        """Begin the next run or epoch. After a second run a third is expected: it is made ahead."""
        self.paused = self.told = False
        self.allowed = max(self.allowed, self._at_once + self._ahead)
        self.asked = max(self.asked, self._at_once)
        if self.over:
            self.first = self.epoch
            per_run = self.resume.per_run or 1
            self.asked = max(self.asked, self.epoch - self.epochs.start + per_run)
            self.allowed = max(self.allowed, self.asked + per_run)

    def owe_end(self, owed: bool) -> bool:
        """Set whether the next `take` returns None although the next run has begun, and return
        whether it did so far."""
        before, self._owes_end = self._owes_end, owed
        return before

    def repeat(self) -> None:
        """Make the next run ahead: another one will follow the first."""
        self._ahead = self.resume.per_run or 0
        if not self.told:
            self.allowed = max(self.allowed, self._at_once + self._ahead)

    def change(self, per_run: int | None, *, each: bool) -> None:
        """Set how many epochs make a run (None: no end), and whether `take` returns None at the end
        of each."""
        if (per_run, each) == (self.resume.per_run, self.resume.each):
            return
        self.resume = replace(self.resume, per_run=per_run, each=each)
        left = FOREVER if per_run is None else self.first + per_run - self.epochs.start
        self._at_once = max(self._at_once, left)
        if not self.told:
            self.allowed, self.asked = max(self.allowed, left), max(self.asked, left)

    def from_epoch(self, epoch: int, counts: tuple[int, int]) -> ResumePoint:
        """Return where a feed goes on with a whole epoch, after `counts` batches and records. After
        the last one of a run the next run begins."""
        resume = replace(
            self.resume, epoch=epoch, run_first=self.first, starts={}, pool=None, counts=counts
        )
        return replace(resume, run_first=epoch) if resume.left == 0 else resume


class PartialEpoch:
    """Rest of the first epoch of a resumed feed."""

    def __init__(self, starts: dict[int, StreamStart], *, ordered: bool) -> None:
        self._parts = {
            (stream, n): rows for stream, s in starts.items() for n, rows in s.part.items()
        }
        # The streams of a callable begin with the first item that is wanted, and later ones may not
        # be; ordered sources read only those that are.
        self._sift = {} if ordered else {n: s for n, s in starts.items() if s.again or s.done}

    def __bool__(self) -> bool:
        return bool(self._parts or self._sift)

    def of(self, batch: Batch, *, stream: int, item: int) -> Batch | None:
        """Return the records of an item that are wanted; None where none is."""
        if stream in self._sift and not self._sift[stream].wants(item):
            return None
        return tail(batch, self._parts.pop((stream, item), 0)) if self._parts else batch

    def clear(self) -> None:
        """Want everything: the epoch is over."""
        self._parts.clear()
        self._sift.clear()
