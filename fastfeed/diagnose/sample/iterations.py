"""Iterations of a loop without hooks, from the lines that the interpreter reports of its frame."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from types import CodeType
from typing import NamedTuple

from fastfeed.probes.interpreter import LineTracer
from fastfeed.steps.timeline import Loop, Mark, Step, Timeline

SAMPLED = "sampled"


class LoopLines(NamedTuple):
    """Source lines of a loop, the head first.

    `input_shares`: by line, the share (0 to 1) of its time that is input.
    """

    code: CodeType
    numbers: range
    input_shares: Mapping[int, float]


class IterationTracker:
    """Records the steps of a loop of the main thread in `loop`, from `start` to `stop`.

    It gives up, and `given_up` says why, if debuggers or coverage tools already trace lines.
    """

    def __init__(self, timeline: Timeline, loop: Loop, *, lines: LoopLines) -> None:
        self._timeline = timeline
        self._loop = loop
        self._lines = lines
        self._tracer = LineTracer(lines.code, self.begin_line, head=lines.numbers.start)
        self._begin_s = -1.0  # of the current iteration; -1: none
        self._wait_s = 0.0
        self._last = 0.0, 0  # when the current line began, and its number
        self._left_s = -1.0
        self._started_s = 0.0

    @property
    def given_up(self) -> str:
        """Reason why the iterations are not recorded; "" if they are."""
        return self._tracer.given_up

    def start(self) -> None:
        """Start with the next line of the loop."""
        self._started_s = perf_counter()
        self._tracer.start()

    def stop(self) -> None:
        """Stop: nothing is recorded from here on."""
        self._tracer.stop()

    def is_running(self, within_s: float) -> bool:
        """Return True if an iteration ended within `within_s` seconds, or none is due yet."""
        last_s = self._loop.steps[-1].end_s if self._loop.steps else self._started_s
        return perf_counter() - max(last_s, self._started_s) < max(within_s, 3 * self._usual_s())

    def tracks_same_loop(self, other: IterationTracker) -> bool:
        """Return True if both track the same loop."""
        return self._lines[:2] == other._lines[:2]

    def begin_line(self, line: int, now: float) -> None:
        """Account for the last line; `line` begins now (0: the function has returned)."""
        since, before = self._last
        self._wait_s += self._lines.input_shares.get(before, 0.0) * (now - since)
        if line not in self._lines.numbers:
            self._leave(now)
        elif line == self._lines.numbers.start:
            self._begin_iteration(now)
        self._last = now, line

    def _usual_s(self) -> float:
        steps = self._loop.steps[-10:]
        return max((step.end_s - step.begin_s for step in steps), default=0.0)

    def _begin_iteration(self, now: float) -> None:
        if self._begin_s >= 0:
            self._end_iteration(now)
        elif self._left_s >= 0:
            self._timeline.marks.append(Mark("epoch", now, now, self._loop.name))
        self._begin_s, self._wait_s = now, 0.0

    def _leave(self, now: float) -> None:
        if self._begin_s >= 0:
            self._end_iteration(now)
            self._begin_s, self._left_s = -1.0, now

    def _end_iteration(self, now: float) -> None:
        self._loop.steps.append(Step(self._begin_s, now, min(self._wait_s, now - self._begin_s)))
