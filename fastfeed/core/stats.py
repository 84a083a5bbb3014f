"""What every stage did, as rows of counters: one writer a row, no locks; readers copy rows and
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
    # in the user's code, collating and checking; of the consumer: the wait for DALI, in wait_in_s
    busy_s: float = 0.0
    # of that, on a core; of the consumer: spent in handing over to a framework, under the lock
    cpu_s: float = 0.0
    wait_in_s: float = 0.0  # for something to work on
    wait_out_s: float = 0.0  # for room in the buffer behind
    errors: int = 0  # records or batches whose making raised, with on_error="skip"
    # batches handed out as copies, because the consumer holds all the slots that can be spared
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
        """The slots there are."""
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
    """A feed at one moment, or (one snapshot minus an earlier one) over the time between the two.

    `elapsed_s`, `consumed.batches` and `consumed.wait_in_s` start with the first batch that was
    delivered, so that warm-up does not count. `depth` and `depth_nbytes` are the batches made and
    not yet taken. With worker processes, `slots` says how many slots there are and in what state,
    and `set_aside` names what killed its worker repeatedly.
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
        """Share (0 to 1) of wall time in which the training step waited for input; nan before the
        second batch."""
        return (
            min(1.0, self.consumed.wait_in_s / self.elapsed_s)
            if self.elapsed_s > 0
            else float("nan")
        )

    @property
    def batches_per_second(self) -> float:
        """Batches that the consumer took, per second of wall time."""
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
    """Producers that count."""

    @property
    def depth(self) -> tuple[int, int]:
        """Batches that are ready, and their bytes."""

    @property
    def copied(self) -> int:
        """Batches that were handed out as copies."""

    @property
    def aside(self) -> tuple[str, ...]:
        """What killed its worker repeatedly."""

    def rows(self) -> tuple[StageRow, ...]:
        """The counters of each."""

    def audit(self) -> Audit:
        """Where every slot is."""


class Consumption:
    """What was taken, and when. The wait for the first batch is warm-up, and no starvation."""

    def __init__(self) -> None:
        self.row = StageRow()
        self.first_s = -1.0  # not yet
        self.last_s = 0.0

    def count(self, rows: int, nbytes: int, *, waited_s: float, now_s: float) -> bool:
        """A batch was taken; whether it counts, as each but the first does."""
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
        """What was taken, beside what `producers` have made; `depth`: batches that have left them
        and were not taken yet."""
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
    """The sum of all rows."""
    rows = list(rows)
    return StageRow(**{f.name: sum(getattr(r, f.name) for r in rows) for f in fields(StageRow)})


def copy(row: StageRow) -> StageRow:
    """The row as it is now."""
    return StageRow(**{f.name: getattr(row, f.name) for f in fields(StageRow)})


def _minus(now: StageRow, then: StageRow) -> StageRow:
    return StageRow(
        **{f.name: getattr(now, f.name) - getattr(then, f.name) for f in fields(StageRow)}
    )
