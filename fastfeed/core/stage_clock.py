"""Clock of a producer: each second in which it does not wait belongs to one stage."""

from __future__ import annotations

import time

from fastfeed.core.stats import STAGES, StageRow

READ, FILTER, TRANSFORM, AUGMENT, COLLATE, HANDOVER = range(6)
STAGE_FIELDS = [f"{stage}_s" for stage in STAGES[: HANDOVER + 1]]
# A lap takes 0.6 us, and the end of a timed batch as much as some laps: half a percent of the time.
LAP_EVERY_S = 2e-4
EARLIER_WEIGHT = 1 - 1 / 64  # weight of the earlier batches when another one is timed


class StageClock:
    """Adds the time of one producer to the stages of its row, without the waits that the row
    counts.

    Some batches, and some records, take less time than the clock itself. Batches are therefore
    timed stage by stage only so often that it takes half a percent of the time: all slow ones are.
    The time of the others is divided among the stages as that of the timed ones was.
    """

    def __init__(self, row: StageRow) -> None:
        self.timing = True  # the present batch
        self._row = row
        self._stage = READ
        self._since = self._waited = 0.0  # the end of the last lap, and the waits until then
        self._due = float("-inf")  # when the next batch is timed
        self._laps = 0
        self._seconds = [0.0] * len(STAGE_FIELDS)  # of the timed batch, by stage
        self._untimed = 0.0  # seconds of the batches before it
        self._mix = [1e-30, *self._seconds[1:]]  # seconds by stage of the last timed batches

    def skip(self) -> None:
        """Leave out the time until now."""
        row = self._row
        self._since, self._waited = time.perf_counter(), row.wait_in_s + row.wait_out_s

    def enter(self, stage: int) -> None:
        """Begin a stage of the present batch, which ends the one before."""
        if self.timing:
            self._lap()
            self._stage = stage
            self._laps += 1

    def hand_over(self) -> float:
        """End the making of a batch, and begin its hand-over, with which the next one is timed.
        Return the time."""
        if self.timing:
            self.settle()
            self._due += self._laps * LAP_EVERY_S
        else:
            self._lap()
        now = self._since
        self.timing = now >= self._due
        if self.timing:
            self._due, self._laps, self._stage = now, 1, HANDOVER
        return now

    def settle(self) -> None:
        """Add all time until now to the row."""
        self._lap()
        mix = [
            EARLIER_WEIGHT * old + new for old, new in zip(self._mix, self._seconds, strict=True)
        ]
        each = self._untimed / sum(mix)
        for name, share, seconds in zip(STAGE_FIELDS, mix, self._seconds, strict=True):
            setattr(self._row, name, getattr(self._row, name) + seconds + each * share)
        self._mix, self._seconds, self._untimed = mix, [0.0] * len(mix), 0.0

    def _lap(self) -> None:
        row, since, before = self._row, self._since, self._waited
        self._since, self._waited = time.perf_counter(), row.wait_in_s + row.wait_out_s
        spent = self._since - since - (self._waited - before)
        if self.timing:
            self._seconds[self._stage] += spent
        else:
            self._untimed += spent
