"""Counters of every stage, as rows: each row has one writer and no lock; readers copy rows and
subtract copies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Protocol


@dataclass(slots=True)
class StageRow:
    """The counters of one stage or of one producer; seconds are cumulative."""

    batches: int = 0
    records: int = 0
    nbytes: int = 0
    skipped: int = 0  # batches of zero records
    # in the user's code, collating and checking; for the consumer: the wait for DALI, within
    # wait_in_s
    busy_s: float = 0.0
    # CPU time of that; for the consumer: of the hand-over to a framework, under the interpreter
    # lock
    cpu_s: float = 0.0
    wait_in_s: float = 0.0  # for input
    wait_out_s: float = 0.0  # for room in the next buffer
    errors: int = 0  # records or batches that raised, with on_error="skip"
    # batches delivered as copies, because the consumer holds all the slots that can be spared
    copied: int = 0


@dataclass(frozen=True, slots=True)
class Audit:
    """How many slots of shared memory are in each state; `all` of them are accounted for."""

    free: int
    filling: int
    ready: int
    lent: int

    @property
    def all(self) -> int:
        """Number of slots."""
        return self.free + self.filling + self.ready + self.lent

    def __add__(self, other: Audit) -> Audit:
        return Audit(
            self.free + other.free,
            self.filling + other.filling,
            self.ready + other.ready,
            self.lent + other.lent,
        )

    def __str__(self) -> str:
        return f"{self.all} slots: {self.free} free, {self.filling} filling, {self.ready} ready, {self.lent} lent"


NO_SLOTS = Audit(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A feed at one moment, or (one snapshot minus an earlier one) between two.

    `elapsed_s`, `consumed.batches` and `consumed.wait_in_s` begin with the first batch that was
    delivered, so that warm-up does not count. `depth` and `depth_nbytes` are the batches produced
    and not yet taken. With worker processes, `slots` counts slots by state, and `set_aside` names
    the samples that killed their worker repeatedly.
    """

    elapsed_s: float
    produced: StageRow
    consumed: StageRow
    depth: int
    depth_nbytes: int
    producers: tuple[StageRow, ...]
    slots: Audit = NO_SLOTS
    set_aside: tuple[str, ...] = ()

    @property
    def starvation(self) -> float:
        """Share (0 to 1) of wall time for which the training step waited for input; nan before the
        second batch."""
        return (
            min(1.0, self.consumed.wait_in_s / self.elapsed_s)
            if self.elapsed_s > 0
            else float("nan")
        )

    @property
    def batches_per_second(self) -> float:
        """Batches that the consumer took per second of wall time."""
        return self.consumed.batches / self.elapsed_s if self.elapsed_s > 0 else float("nan")

    def __sub__(self, earlier: Snapshot) -> Snapshot:
        producers = zip(self.producers, earlier.producers, strict=True)
        return Snapshot(
            self.elapsed_s - earlier.elapsed_s,
            _minus(self.produced, earlier.produced),
            _minus(self.consumed, earlier.consumed),
            self.depth,
            self.depth_nbytes,
            tuple(_minus(now, then) for now, then in producers),
            self.slots,
            self.set_aside,
        )


class Counted(Protocol):
    """Producers with counters."""

    @property
    def depth(self) -> tuple[int, int]:
        """Batches that are ready, and their bytes."""

    @property
    def copied(self) -> int:
        """Batches that were delivered as copies."""

    @property
    def aside(self) -> tuple[str, ...]:
        """Samples that killed their worker repeatedly."""

    def rows(self) -> tuple[StageRow, ...]:
        """Return the counters of each producer."""

    def audit(self) -> Audit:
        """Return how many slots are in each state."""


class Consumption:
    """What the consumer took, and when. The wait for the first batch is warm-up, not starvation."""

    def __init__(self) -> None:
        self.row = StageRow()
        self.first_s = -1.0  # none yet
        self.last_s = 0.0

    def count(self, rows: int, nbytes: int, *, waited_s: float, now_s: float) -> bool:
        """Count a batch; return False for the first one, which ends the warm-up."""
        self.last_s = now_s
        if self.first_s < 0:
            self.first_s = now_s
            return False
        self.row.wait_in_s += waited_s
        self.row.batches += 1
        self.row.records += rows
        self.row.nbytes += nbytes
        return True

    def snapshot(self, producers: Counted, *, depth: int, until_s: float) -> Snapshot:
        """Return these counters beside those of `producers`. `depth`: batches that have left the
        producers and were not taken yet."""
        rows = producers.rows()
        ready, nbytes = producers.depth
        return Snapshot(
            elapsed_s=0.0 if self.first_s < 0 else until_s - self.first_s,
            produced=total(rows),
            consumed=replace(self.row, copied=producers.copied),
            depth=ready + depth,
            depth_nbytes=nbytes,
            producers=rows,
            slots=producers.audit(),
            set_aside=producers.aside,
        )


def total(rows: Iterable[StageRow]) -> StageRow:
    """Return the sum of all rows."""
    rows = list(rows)
    return StageRow(**{f.name: sum(getattr(r, f.name) for r in rows) for f in fields(StageRow)})


def copy(row: StageRow) -> StageRow:
    """Return the row as it is now."""
    return StageRow(**{f.name: getattr(row, f.name) for f in fields(StageRow)})


def _minus(now: StageRow, then: StageRow) -> StageRow:
    return StageRow(
        **{f.name: getattr(now, f.name) - getattr(then, f.name) for f in fields(StageRow)}
    )
