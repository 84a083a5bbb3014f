"""Clock of a producer: each second in which it does not wait belongs to one stage."""

from __future__ import annotations

import time

from fastfeed.core.stats import StageRow

# The stages as fields of a StageRow. MIXED is the work on records that are not timed one by one.
READ, FILTER, TRANSFORM, AUGMENT = "read_s", "filter_s", "transform_s", "augment_s"
COLLATE, HANDOVER, MIXED = "collate_s", "handover_s", ""
# To time a group of 8 records takes 8 us. Groups that take longer than this are all timed.
SAMPLE_EVERY_S = 0.001
KEPT = 1 - 1 / 256  # weight of the earlier groups when another one is timed


class StageClock:
    """Adds the time of one producer to the stages of its row, without the waits that the row
    counts.

    Some records take less time than the clock itself. Only one group of records a millisecond is
    timed record by record. The time of the others is divided as that of the timed groups was.
    """

    def __init__(self, row: StageRow) -> None:
        self._row = row
        self._stage = READ
        self._since = self._waited = 0.0  # the present stage's begin, and the waits until then
        self._sampled_at = float("-inf")
        self._sampling = False
        # Seconds by stage in timed groups. Without any, all time is that of reading.
        self._mix = dict.fromkeys((READ, FILTER, TRANSFORM, AUGMENT), 0.0) | {READ: 1e-9}

    def skip(self) -> None:
        """Leave out the time until now."""
        self._since = time.perf_counter()
        self._waited = self._row.wait_in_s + self._row.wait_out_s

    def enter(self, stage: str) -> float:
        """Begin a stage, which ends the present one; return the time."""
        row, ended, since, before = self._row, self._stage, self._since, self._waited
        now, waited = time.perf_counter(), row.wait_in_s + row.wait_out_s
        spent = now - since - (waited - before)
        self._stage, self._since, self._waited = stage, now, waited
        if ended is MIXED:
            each = spent / sum(self._mix.values())
            for one, seconds in self._mix.items():
                setattr(row, one, getattr(row, one) + each * seconds)
        else:
            setattr(row, ended, getattr(row, ended) + spent)
        if self._sampling:
            self._mix[ended] += spent
            self._sampling = stage in self._mix
        return now

    def sample(self) -> StageClock | None:
        """Return this clock if the next group of records is to be timed, else None."""
        if time.perf_counter() - self._sampled_at >= SAMPLE_EVERY_S:
            self._sampled_at = self.enter(READ)
            self._sampling = True
            for stage in self._mix:
                self._mix[stage] *= KEPT
            return self
        if self._stage is not MIXED:
            self.enter(MIXED)
        return None
