"""Counters of every stage: one writer for each row, no locks; readers subtract copies of rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from operator import attrgetter, sub
from typing import NamedTuple

# What a producer does to a batch, in order, and what the consumer may do to it in its wait.
STAGES = ("read", "filter", "transform", "augment", "collate", "handover", "shuffle")


@dataclass(slots=True)
class StageRow:
    """The counters of one producer or of the consumer; all are cumulative.

    `batches`, `records` and `nbytes` (bytes) that it made or took; `skipped`: batches of zero
    records. `cpu_s`: seconds on a core; of the consumer, in the hand-over to a framework, with the
    interpreter lock. `wait_in_s`: seconds of its waits for input. `wait_out_s`: of those for room
    behind it. `errors`: records and batches that raised and were left out, with on_error="skip".
    `copied`: batches handed out as copies, because the consumer holds all slots that can be spared.

    Seconds by stage: `read_s` (the source, or its cache), `filter_s`, `transform_s` (of records and
    batches), `augment_s` (with decoding), `collate_s` (with casts and checks), `handover_s` and
    `shuffle_s`. Those of the consumer's stages (`shuffle`, and `augment` with DALI) are parts of
    its `wait_in_s`.
    """

    batches: int = 0
    records: int = 0
    nbytes: int = 0
    skipped: int = 0  # batches of zero records
    # on a core; for the consumer: spent in the hand-over to a framework, under the GIL
    cpu_s: float = 0.0
    wait_in_s: float = 0.0  # for input
    wait_out_s: float = 0.0  # for room in the buffer behind this stage
    errors: int = 0  # records or batches that raised and were skipped, with on_error="skip"
    # batches handed out as copies, because the consumer holds all the slots that can be spared
    copied: int = 0
    read_s: float = 0.0  # from the source, or its cache
    filter_s: float = 0.0
    transform_s: float = 0.0  # of records and of batches
    augment_s: float = 0.0  # decoding included
    collate_s: float = 0.0  # casts and checks included
    handover_s: float = 0.0  # of whole batches to the consumer
    shuffle_s: float = 0.0

    @property
    def stages(self) -> dict[str, float]:
        """Seconds by stage, without stages that took none."""
        return {stage: s for stage in STAGES if (s := getattr(self, f"{stage}_s"))}

    @property
    def busy_s(self) -> float:
        """Seconds of all stages: the time in which a producer does not wait."""
        return float(sum(STAGE_SECONDS(self)))


ROW_FIELDS = attrgetter(*(f.name for f in fields(StageRow)))
STAGE_SECONDS = attrgetter(*(f"{stage}_s" for stage in STAGES))


@dataclass(frozen=True, slots=True)
class SlotCounts:
    """The number of shared-memory slots in each state: without a batch, in a producer's hands, with
    a batch that is not taken yet, and with one that the loop holds. Every slot is in one state."""

    free: int
    filling: int
    ready: int
    lent: int

    @property
    def all(self) -> int:
        """The total number of slots."""
        return self.free + self.filling + self.ready + self.lent

    def __add__(self, other: SlotCounts) -> SlotCounts:
        return SlotCounts(
            self.free + other.free,
            self.filling + other.filling,
            self.ready + other.ready,
            self.lent + other.lent,
        )

    def __str__(self) -> str:
        return (
            f"{self.all} slots: {self.free} free, {self.filling} filling, {self.ready} ready, "
            f"{self.lent} lent"
        )


NO_SLOTS = SlotCounts(0, 0, 0, 0)


RESULTS = ("kept", "given up", "proposed")  # of decisions


class Decision(NamedTuple):
    """A number of producers that was tried, `seconds` after the begin: `before` and `after` of the
    option `knob`, if it was kept, and what was measured. `proposed`: to the user, and not tried."""

    seconds: float
    knob: str
    before: int
    after: int
    kept: bool
    why: str
    proposed: bool = False

    @property
    def result(self) -> str:
        """What became of it, of RESULTS."""
        return "proposed" if self.proposed else "kept" if self.kept else "given up"

    def __str__(self) -> str:
        if self.proposed:
            return f"{self.knob}: {self.why}"
        what = "" if self.kept else f", back to {self.before}"
        return f"{self.knob} {self.before} -> {self.after}{what}: {self.why}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a feed at one moment; a difference of two is what happened between them.

    `elapsed_s` (seconds), `consumed.batches` and `consumed.wait_in_s` start with the first
    delivered batch, so that warm-up does not count. `depth` and `depth_nbytes` count the batches
    that are produced and not yet taken. With worker processes, `slots` counts the slots by state,
    and `set_aside` names the items that were given up because they killed their worker repeatedly.
    `remade` counts the damaged records of a cache that were made again. `one_reader`: the source is
    one iterator, which one producer at a time reads, or makes one stream. `taken_s` is `elapsed_s`
    when the last batch was taken. `tuning`: what was decided where the number of producers is
    "auto", oldest first.
    """

    elapsed_s: float
    produced: StageRow
    consumed: StageRow
    depth: int
    depth_nbytes: int
    producers: tuple[StageRow, ...]
    slots: SlotCounts = NO_SLOTS
    set_aside: tuple[str, ...] = ()
    remade: int = 0
    one_reader: bool = False
    taken_s: float = 0.0
    tuning: tuple[Decision, ...] = ()

    @property
    def starvation(self) -> float:
        """Share (0 to 1) of wall time in which the training step waited for input.

        It is nan before the second batch.
        """
        return (
            min(1.0, self.consumed.wait_in_s / self.elapsed_s)
            if self.elapsed_s > 0
            else float("nan")
        )

    @property
    def batches_per_second(self) -> float:
        """Batches that the consumer took per second of wall time."""
        return self.consumed.batches / self.elapsed_s if self.elapsed_s > 0 else float("nan")

    @property
    def blocked_s(self) -> dict[str, float]:
        """Seconds by stage for which the consumer waited; together `consumed.wait_in_s`. Empty if
        nothing is known of the producers.

        What the consumer itself did is measured. The rest is divided by the stages' shares of the
        producers' time: where a batch takes c seconds, n producers make n / c per second, and the
        wait shrinks by the share of what is left out (utilisation law of Denning and Buzen, 1978).
        Workers' waits for items count as reading for as long as the trainer read the source.
        """
        made, own = self.produced.stages, self.consumed.stages
        trainer_s = self.produced.read_s - sum(row.read_s for row in self.producers)
        waited_s = min(self.produced.wait_in_s, max(0.0, trainer_s) * len(self.producers))
        made["read"] = made.get("read", 0.0) + waited_s
        total, rest_s = sum(made.values()), self.consumed.wait_in_s - sum(own.values())
        if total <= 0:
            return {}
        each = max(0.0, rest_s) / total
        seconds = {name: own.get(name, 0.0) + each * made.get(name, 0.0) for name in STAGES}
        return {name: one for name, one in seconds.items() if one}

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
            self.remade - earlier.remade,
            self.one_reader,
            self.taken_s - earlier.taken_s,
            # not by their count: a long history forgets the first ones
            tuple(one for one in self.tuning if one not in earlier.tuning),
        )


class Consumption:
    """Counts and times of the batches taken by the consumer.

    The wait for the first batch is warm-up, not starvation.
    """

    def __init__(self) -> None:
        self.row = StageRow()
        self.first_s = -1.0  # no batch was taken yet
        self.last_s = 0.0

    def count(self, rows: int, nbytes: int, *, waited_s: float, now_s: float) -> bool:
        """Count a batch; return False for the first one, which does not count."""
        self.last_s = now_s
        if self.first_s < 0:
            self.first_s, self.row.augment_s = now_s, 0.0
            return False
        self.row.wait_in_s += waited_s
        self.row.batches += 1
        self.row.records += rows
        self.row.nbytes += nbytes
        return True


def total(rows: Iterable[StageRow]) -> StageRow:
    """Return the sum of all rows."""
    return StageRow(*map(sum, zip(*map(ROW_FIELDS, rows), strict=True)))


def copy(row: StageRow) -> StageRow:
    """Return a copy of the row."""
    return StageRow(*ROW_FIELDS(row))


def _minus(now: StageRow, then: StageRow) -> StageRow:
    return StageRow(*map(sub, ROW_FIELDS(now), ROW_FIELDS(then)))
