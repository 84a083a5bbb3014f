"""Every iteration of a loop without a hook: the interpreter reports which line of the loop's own
frame begins."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from time import perf_counter
from types import CodeType
from typing import NamedTuple

from fastfeed.probes.interpreter import MonitoringLineTracer, TraceLineTracer
from fastfeed.steps.timeline import (
    OBSERVING,
    UNOBSERVED,
    Loop,
    Mark,
    Step,
    Timeline,
)

SAMPLED = "sampled"
NOTICED = 0.01  # of an iteration
COSTLY = 1.1  # times as long: above it, tracing is not permanent


class LoopLines(NamedTuple):
    """A loop of `code`: its lines, the head first; by line the share (0 to 1) of its time that is
    input, and by which factor tracing slows it, if not 1."""

    code: CodeType
    lines: range
    waits: Mapping[int, float]
    slowed: Mapping[int, float]


class IterationTracker:
    """Records the steps of a loop that the main thread runs into `loop`, from `start` to `stop`.

    It leaves a debugger or a coverage tool alone that traces lines itself, and a script whose many
    calls would make tracing too slow; then `given_up` says why.
    """

    def __init__(self, timeline: Timeline, loop: Loop, *, of: LoopLines) -> None:
        self._timeline = timeline
        self._loop = loop
        self._of = of
        head, costly = of.lines.start, max(of.slowed.values(), default=1.0) > COSTLY
        self._eye: MonitoringLineTracer | TraceLineTracer
        if sys.version_info >= (3, 12):
            self._eye = MonitoringLineTracer(of.code, self.seen, head=head)
        else:
            self._eye = TraceLineTracer(of.code, self.seen, head=head, costly=costly)
        self._begin_s = -1.0  # of the present iteration
        self._wait_s = self._ours_s = self._cost_s = 0.0
        self._last = 0.0, 0  # when the present line began, and its number
        self._left_s = self._unseen_s = -1.0
        self._started_s = 0.0

    @property
    def given_up(self) -> str:
        """Why iterations are not observed; "" if they are."""
        return self._eye.given_up

    def start(self) -> None:
        """Begin with the next instruction of the main thread."""
        self._started_s = perf_counter()
        self._eye.start()

    def stop(self) -> None:
        """Record nothing from here on."""
        self._eye.stop()

    def wake(self) -> None:
        """Trace again, if it paused because of the cost; called once a second."""
        self._eye.wake()

    def goes_on(self, within_s: float) -> bool:
        """Return True if an iteration ended within that time, or none is to be expected yet."""
        last_s = self._loop.steps[-1].end_s if self._loop.steps else self._started_s
        return perf_counter() - max(last_s, self._started_s) < max(within_s, 3 * self._usual_s())

    def same(self, other: IterationTracker) -> bool:
        """Return True if both observe the same loop."""
        return self._of[:2] == other._of[:2]

    def seen(self, line: int, now: float) -> None:
        """Note that a line of the function begins; 0: the function is over."""
        if self._eye.woke:
            self._eye.woke = False
            self._unseen_s = max(self._unseen_s, self._last[0])
            self._begin_s, self._left_s, self._last = -1.0, -1.0, (now, 0)
        since, before = self._last
        cost_s, self._cost_s = self._eye.cost_s - self._cost_s, self._eye.cost_s
        spent_s = max(0.0, now - since - cost_s) / self._of.slowed.get(before, 1.0)
        self._wait_s += self._of.waits.get(before, 0.0) * spent_s
        self._ours_s += now - since - spent_s
        if line not in self._of.lines:
            self._leave(now)
        elif line == self._of.lines.start:
            self._turn(now)
        self._last = now, line

    def _usual_s(self) -> float:
        steps = self._loop.steps[-10:]
        return max((step.end_s - step.begin_s for step in steps), default=0.0)

    def _turn(self, now: float) -> None:
        if self._begin_s >= 0:
            self._step(now)
        elif self._unseen_s >= 0:
            self._timeline.marks.append(Mark(UNOBSERVED, self._unseen_s, now))
            self._unseen_s = -1.0
        elif self._left_s >= 0:
            self._timeline.marks.append(Mark("epoch", now, now, self._loop.name))
        self._begin_s, self._wait_s, self._ours_s = now, 0.0, 0.0

    def _leave(self, now: float) -> None:
        if self._begin_s >= 0:
            self._step(now)
            self._begin_s, self._left_s = -1.0, now

    def _step(self, now: float) -> None:
        self._loop.steps.append(Step(self._begin_s, now, min(self._wait_s, now - self._begin_s)))
        if self._ours_s > NOTICED * (now - self._begin_s):
            self._timeline.marks.append(
                Mark(OBSERVING, max(self._begin_s, now - self._ours_s), now)
            )
