"""Iterations of a loop without hooks: from the lines that the interpreter reports of its frame, or
from samples of its thread."""

from __future__ import annotations

import itertools
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from time import perf_counter
from typing import Any, Protocol

from fastfeed.diagnose.sample.loop_parts import LoopLines, locate, made_by_head, position_of
from fastfeed.diagnose.sample.loop_statements import HOST, INPUT_KIND
from fastfeed.diagnose.sample.tasks import AttributionContext
from fastfeed.diagnose.sample.thread_samples import MIN_SAMPLES, Sample
from fastfeed.probes.interpreter import LineTracer
from fastfeed.steps.timeline import Beats, Loop, Mark, Step, Timeline

SAMPLED = "sampled"
NO_BEATS = Beats()
MIN_SAMPLES_PER_STEP = 4  # below it, some iterations have no sample at all
MIN_SAMPLED_STEPS = 21  # a verdict needs 20, each with the begin of the next one


class FetchClock(Protocol):
    """The accelerator's clock: `begin` before a fetch, `end` of what it returned behind it."""

    def begin(self) -> Any: ...
    def end(self, begun: Any, *, loop: Loop, begin_s: float) -> None: ...


class IterationTracker:
    """Records the steps of a loop of the main thread in `loop`, from `start` to `stop`.

    It gives up, and `given_up` says why, if debuggers or coverage tools already trace lines.
    """

    def __init__(
        self, timeline: Timeline, loop: Loop, *, lines: LoopLines, device: FetchClock
    ) -> None:
        self._timeline = timeline
        self._loop = loop
        self._lines = lines
        self._device = device
        self._fetch: Any = None  # that has begun
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
            now = self._begin_iteration(now)
        elif self._fetch is not None:
            self._device.end(self._fetch, loop=self._loop, begin_s=self._begin_s)
            self._fetch = None
        self._last = now, line

    def _usual_s(self) -> float:
        steps = self._loop.steps[-10:]
        return max((step.end_s - step.begin_s for step in steps), default=0.0)

    def _begin_iteration(self, now: float) -> float:
        """Begin an iteration; return its begin, which is after a wait for the device, if any."""
        if self._begin_s >= 0:
            self._end_iteration(now)
        elif self._left_s >= 0:
            self._timeline.marks.append(Mark("epoch", now, now, self._loop.name))
        self._fetch = self._device.begin() if self._lines.by_head else None
        self._begin_s, self._wait_s = self._fetch.asked_s if self._fetch else now, 0.0
        return self._begin_s

    def _leave(self, now: float) -> None:
        self._fetch = None
        if self._begin_s >= 0:
            self._end_iteration(now)
            self._begin_s, self._left_s = -1.0, now

    def _end_iteration(self, now: float) -> None:
        self._loop.steps.append(Step(self._begin_s, now, min(self._wait_s, now - self._begin_s)))


def sampled_loop(
    trace: Iterable[tuple[float, Sample]],
    *,
    context: AttributionContext,
    beats: Beats = NO_BEATS,
) -> Loop | None:
    """Return the sampled loop with its steps; None if they cannot be told apart.

    `beats`: of what happens once in each iteration, in the innermost loop around their lines.
    """
    pairs = [(now_s, sample) for now_s, sample in trace if sample.stack]
    samples, lines = [sample for _, sample in pairs], context.step_lines
    if len(pairs) < MIN_SAMPLES:
        return None
    around = (f"{os.path.basename(file)}:{line}" for file, line in beats.lines)
    located = (locate(samples, where=where, step_lines=lines) for where in around)
    found = next(filter(None, located), None) or locate(samples, step_lines=lines)
    if found is None or not found.kinds:
        return None
    observations = []
    part_of = cache(found.with_epochs().part_of)  # there are few positions
    for now_s, sample in pairs:
        kind, line = part_of(position_of(sample, found.code)) or (HOST, -1)
        observations.append((now_s, kind, line))
    times = beats.times or beats.turns.get((found.code.co_filename, found.node.lineno), ())
    steps = steps_between(times, observations) or steps_of(observations)
    if len(steps) < MIN_SAMPLED_STEPS:
        return None
    place = found.place(context)
    where = f"{place.file}:{place.line}"
    name = f"the loop in {place}"
    head = found.node.lineno
    made = Counter(line for _, kind, line in observations if kind == INPUT_KIND)
    gaps = beats.gaps.get((found.code.co_filename, head), ()) if made_by_head(made, head) else ()
    loop = Loop(name, SAMPLED, context.loop, waits="modelled", where=where, steps=steps)
    loop.device_gaps += gaps
    return loop


def steps_of(observations: Sequence[tuple[float, str, int]]) -> list[Step]:
    """Return steps from (time, kind, line) of samples; [] if some iterations may have no sample.

    An iteration begins where the line number decreases.
    """
    starts = [i for i in range(1, len(observations)) if observations[i][2] < observations[i - 1][2]]
    if len(starts) < 2 or len(observations) / len(starts) < MIN_SAMPLES_PER_STEP:
        return []
    steps = []
    for first, after in itertools.pairwise(starts):
        begin_s, end_s = observations[first][0], observations[after][0]
        waits = sum(kind == INPUT_KIND for _, kind, _ in observations[first:after])
        steps.append(Step(begin_s, end_s, (end_s - begin_s) * waits / (after - first)))
    return steps


def steps_between(
    beats: Sequence[float], observations: Sequence[tuple[float, str, int]]
) -> list[Step]:
    """Return the steps from beat to beat, with waits from (time, kind, line) of samples.

    A step that is too short for samples of its own waits for as large a share as all of those.
    """
    times = [now_s for now_s, _, _ in observations]
    known = [0, *itertools.accumulate(kind == INPUT_KIND for _, kind, _ in observations)]
    spans = []
    for begin_s, end_s in itertools.pairwise(b for b in beats if times[0] <= b <= times[-1]):
        first, after = bisect_left(times, begin_s), bisect_left(times, end_s)
        spans.append((begin_s, end_s, after - first, known[after] - known[first]))
    short = [(n, waits) for *_, n, waits in spans if n < MIN_SAMPLES_PER_STEP]
    usual = sum(waits for _, waits in short) / max(1, sum(n for n, _ in short))
    return [
        Step(b, e, (e - b) * (usual if n < MIN_SAMPLES_PER_STEP else waits / n))
        for b, e, n, waits in spans
    ]
