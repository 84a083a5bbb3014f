"""A training in virtual time, as a tuner sees it."""

from __future__ import annotations

import math
from collections.abc import Callable

from fastfeed.core.stats import Snapshot, StageRow
from fastfeed.tune.count_tuner import CountTuner

POLL_S, QUIET_POLL_S = 0.05, 0.5
DEPTH = 16  # batches that are made ahead
Curve = Callable[[int], float]


class SimulatedTraining:
    """A training of `step_s` whose `count` producers make `rate(count)` batches/s."""

    def __init__(self, rate: Curve, *, step_s: float, count: int = 1, most: int = 64) -> None:
        self.rate = rate
        self.late_every, self.late_s = 0, 0.0  # batches that come late, and how late
        self._comes_s = 0.0  # when the next one to take comes, if it is late
        self.step_s = step_s
        self.count = count
        self.most = most
        self.now_s = self.paused_until_s = 0.0
        self.changes: list[tuple[float, int]] = []
        self._made = self._taken = 0
        self._progress = 0.0  # of the batch in the making
        self._busy_s = self._wait_s = self._last_s = 0.0
        self._first_s = -1.0
        self._ready_s = 0.0  # when the step asks for its next batch
        self._tuner = CountTuner("threads", count, limits=lambda *_: (self.most, "the test"))

    @property
    def history(self) -> list[str]:
        """What was decided."""
        return list(map(str, self._tuner.history))

    def run(self, seconds: float) -> float:
        """Go on for so long; return the steps/s of it."""
        until_s, taken = self.now_s + seconds, self._taken
        while self.now_s < until_s:
            self._advance(POLL_S if self._tuner.searches else QUIET_POLL_S)
            wanted = self._tuner.look(self._snapshot(), self.now_s)
            if wanted != self.count:
                self.count = wanted
                self.changes.append((self.now_s, wanted))
        return (self._taken - taken) / seconds

    @property
    def held_up(self) -> str:
        """What the tuner says of late batches."""
        return self._tuner.held_up

    @property
    def best(self) -> float:
        """The steps/s of the best number."""
        return min(1 / self.step_s, max(self.rate(n) for n in range(1, self.most + 1)))

    def _advance(self, seconds: float) -> None:
        """Go from event to event: a batch is made, or taken."""
        end_s = self.now_s + seconds
        while True:
            ready = self._made - self._taken
            rate = self.rate(self.count) if ready < DEPTH else 0.0
            made_s = self.now_s + (1 - self._progress) / rate if rate else math.inf
            asked_s = max(self.now_s, self._ready_s, self.paused_until_s, self._comes_s)
            taken_s = asked_s if ready else math.inf
            at_s = min(made_s, taken_s, end_s)
            self._progress += (at_s - self.now_s) * rate
            self._busy_s += (at_s - self.now_s) * self.count * bool(rate)
            self.now_s = at_s
            if at_s == taken_s:
                self._take()
            elif at_s == made_s:
                self._made += 1
                self._progress = 0.0
            else:
                return

    def _take(self) -> None:
        if self._first_s < 0:
            self._first_s = self.now_s
        elif self.now_s > self.paused_until_s:
            self._wait_s += self.now_s - self._ready_s
        self._taken += 1
        if self.late_every and self._taken % self.late_every == 0:
            self._comes_s = self.now_s + self.late_s
        self._last_s = self.now_s
        self._ready_s = self.now_s + self.step_s

    def _snapshot(self) -> Snapshot:
        seen = self._first_s >= 0
        consumed = StageRow(batches=max(0, self._taken - 1), wait_in_s=self._wait_s)
        made = StageRow(batches=self._made, read_s=self._busy_s)
        return Snapshot(
            self.now_s - self._first_s if seen else 0.0,
            made,
            consumed,
            self._made - self._taken,
            0,
            (made,),
            taken_s=self._last_s - self._first_s if seen else 0.0,
        )
