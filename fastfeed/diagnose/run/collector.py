"""Collection of evidence about the loop of one process."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from fastfeed.core.stats import Snapshot
from fastfeed.diagnose.diagnosis import MIN_STEPS
from fastfeed.diagnose.evidence import MIN_WORK, PRODUCER, Evidence, LoopPart
from fastfeed.diagnose.hooks.experiments import BURSTS
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.torch_modes import evaluated_in
from fastfeed.diagnose.run.lifecycle import LOOP_TIMEOUT_S, Lifecycle
from fastfeed.diagnose.sample.iterations import SAMPLED, IterationTracker
from fastfeed.diagnose.sample.loop_statements import INPUT_KIND, STEP
from fastfeed.diagnose.sample.remote_tasks import with_remote
from fastfeed.diagnose.sample.sampler import Sampler
from fastfeed.probes.interpreter import CAN_TRACE_LINES
from fastfeed.probes.lock import CONTENDED_S
from fastfeed.probes.machine_log import pools_of
from fastfeed.steps.timeline import DOSED, Beats, Loop, Mark, Step, Timeline

LOOP_SEARCH_S = 1.0
LATEST_STEPS = 100  # that tell what a loop does now
LONG_CALL_S = 1.0  # an iteration that takes longer and fetches no batch is no single step
WHOLE_EPOCHS_NOTE = (
    "an iteration takes seconds and fetches no batch: it is a call that takes its batches itself, "
    "such as a compiled epoch; figures are per call, and waits for input are hidden in it"
)
OLD_PYTHON = "Python reports them since 3.12; `fastfeed.watch` marks the steps in any version"
CALL_LOOPS = ("session", "call")  # kinds that are known by the calls of their steps
CALL_KINDS = (*CALL_LOOPS, "keras")  # loops whose steps are calls, with time between them


class EvidenceCollector:
    """Samples a process, and puts what hooks and samples found into evidence."""

    def __init__(self) -> None:
        self._sampler = Sampler()
        self._log: HookLog | None = None
        self._tracker: IterationTracker | None = None
        self._searched_s = time.perf_counter()
        self._stopped = False

    def watch(self, log: HookLog) -> None:
        """Start sampling before the script starts."""
        self._log = log
        self._sampler.observe(ours=log.ours, deaths=log.deaths, step_lines=log.step_lines)
        log.contended = self._contended
        self._sampler.start()
        self._sampler.begin(asking=False)

    def measure(self) -> None:
        """Start measuring: the warm-up is over, or another loop is the main one."""
        loop = self._log.main if self._log is not None else None
        if loop is not None and loop.kind != SAMPLED:
            self._stop_tracker()
        self._sampler.begin(loop.thread if loop is not None else None)

    def search(self, now_s: float) -> None:
        """Search for a loop in the samples, once a second until a hook sees one, and track its
        iterations."""
        log, tracker = self._log, self._tracker
        early = not CAN_TRACE_LINES or now_s < self._searched_s + LOOP_SEARCH_S
        if log is None or self._stopped or early:
            return
        self._searched_s = now_s
        loops = list(log.timeline.loops.values())
        if any(len(loop.steps) > 1 and loop.kind != SAMPLED for loop in loops):
            return
        if tracker and (tracker.given_up or tracker.is_running(LOOP_TIMEOUT_S)):
            return
        found = self._sampler.track_iterations(log.timeline, log.device_clock)
        if found is not None and not (tracker and found.tracks_same_loop(tracker)):
            self._stop_tracker()  # its loop is over: it read files, and now the script trains
            self._tracker = found
            found.start()

    def sees_loop(self) -> bool:
        """Return True if samples tell the steps of a loop without hooks apart."""
        return self._log is not None and self._sampled(self._log) is not None

    def _sampled(self, log: HookLog) -> Loop | None:
        return self._sampler.sampled_loop(log.beats_of)

    def only_takes(self, loop: Loop) -> bool:
        """Return True for a loop around a queue that does next to nothing with what it takes, so
        that it trains nothing itself."""
        steps = loop.steps[-LATEST_STEPS:]
        if loop.kind != "queue" or not steps:
            return False
        inside_s = sum(step.end_s - step.begin_s - step.wait_s for step in steps)
        works = inside_s >= MIN_WORK * (steps[-1].end_s - steps[0].begin_s)
        return not works and not any(part.kind == STEP for part in self._sampler.parts(loop.where))

    def stop(self) -> None:
        """Stop sampling; it may be called again."""
        if self._stopped:
            return
        self._stopped = True
        self._stop_tracker()
        self._sampler.stop()

    def _contended(self) -> int:
        late_s, _ = self._sampler.lock_delays()
        if late_s is not None and late_s > CONTENDED_S:
            return BURSTS
        return int(self._sampler.producers_compete)

    def _stop_tracker(self) -> None:
        if self._tracker is not None:
            self._tracker.stop()

    def evidence(self, life: Lifecycle) -> Evidence:
        """Return everything that was observed."""
        sampler, log = self._sampler, life.log
        loop = life.loop or self._sampled(log) or life.seen_loop
        late_s, late_p90_s = sampler.lock_delays()
        first = loop.steps[0] if loop and loop.steps else None
        parts: tuple[LoopPart, ...] = ()
        if loop and loop.kind != "keras":  # `fit` is one line, and has its hooks
            since_s = first.begin_s if first else 0.0
            fetches = loop.kind not in CALL_LOOPS
            alone = loop.kind == "sampled"
            parts = sampler.parts(loop.where, since_s=since_s, fetches=fetches, epochs=alone)
        tasks = sampler.tasks(waits_of(loop) if loop else ())
        if loop is not None and loop.producers is not None:
            tasks = with_remote(tasks, loop.producers())
        missing = (*log.missing, *sampler.missing, *self._untracked(loop))
        calls, evaluations = loops_beside(loop, log.timeline, parts=parts)
        marks = [mark for mark in log.timeline.marks if mark.label not in _acting(parts)]
        for one in evaluations:
            marks += [Mark("evaluation", s.begin_s, s.end_s, one.name) for s in list(one.steps)]
        seen = _as_value(loop, parts)
        if seen is not None:
            marks = aligned(marks, seen.steps)
            seen = replace(seen, steps=without_dosed(seen.steps, marks))
        return Evidence(
            loop=seen,
            marks=tuple(sorted(marks, key=lambda mark: mark.start_s)),
            tasks=tasks,
            machine=sampler.machine(),
            start_s=life.start_s,
            end_s=time.perf_counter(),
            parts=parts,
            gil_late_s=late_s,
            gil_late_p90_s=late_p90_s,
            pools=pools_of(sys.modules),
            missing=tuple(dict.fromkeys(missing)),
            overhead_s=sampler.overhead_s,
            first_batch_s=first.begin_s + first.wait_s - life.begin_s if first else None,
            warmup_s=life.warmup_s,
            beside=tuple(without_dosed(steps_beside(calls, start_s=life.start_s), marks)),
            threads=max(1, sum(task.role == PRODUCER for task in tasks)),
            hint=sampler.mark_hint() if loop is None or len(loop.steps) < MIN_STEPS else None,
            feed=_feed_of(loop),
        )

    def _untracked(self, loop: Loop | None) -> list[str]:
        """Return why the iterations of a loop without hooks are not known one by one."""
        beats = self._log.beats_of(loop.thread) if loop is not None and self._log else Beats()
        known = {f"{os.path.basename(file)}:{line}" for file, line in beats.turns}
        if loop is not None and (loop.kind != SAMPLED or beats.times or loop.where in known):
            return []
        reason = "" if CAN_TRACE_LINES else OLD_PYTHON
        reason = self._tracker.given_up if self._tracker else reason
        return [f"each iteration of the loop: {reason}"] if reason else []


def _feed_of(loop: Loop | None) -> Snapshot | None:
    """Return the counters of the FeedRunner that delivered most batches; None if it has made fewer
    than the loop has steps, as one that only evaluates."""
    runners = sys.modules.get("fastfeed.runner.stream")
    streams = [ref() for ref in list(runners.STREAMS)] if runners is not None else []
    found = [stream.snapshot() for stream in streams if stream is not None]
    least = max(1, len(loop.steps)) if loop is not None else 1
    found = [one for one in found if one.produced.batches >= least]
    return max(found, key=lambda one: one.consumed.batches, default=None)


def _as_value(loop: Loop | None, parts: tuple[LoopPart, ...]) -> Loop | None:
    """Return the loop as a value.

    Iterations of seconds that fetch no batch are calls that take their batches themselves.
    """
    if loop is None:
        return None
    inside = loop.kind == SAMPLED and not any(part.kind == INPUT_KIND for part in parts)
    if inside and loop.steps and median(s.end_s - s.begin_s for s in loop.steps) >= LONG_CALL_S:
        loop = replace(loop, waits="hidden", note=WHOLE_EPOCHS_NOTE)
    return replace(loop, producers=None)


def aligned(marks: Iterable[Mark], steps: Sequence[Step]) -> list[Mark]:
    """Return the marks. Those of doses reach from the begin of the first step that they touch to
    that of the first one that they do not."""
    found = []
    for mark in marks:
        touched = [
            i
            for i, step in enumerate(steps if mark.label == DOSED else ())
            if step.end_s > mark.start_s and step.begin_s < mark.end_s
        ]
        if touched:
            start_s = min(mark.start_s, steps[touched[0]].begin_s)
            after = [step.begin_s for step in steps[touched[-1] + 1 :][:1]]
            found.append(mark._replace(start_s=start_s, end_s=max([mark.end_s, *after])))
        else:
            found.append(mark)
    return found


def without_dosed(steps: Iterable[Step], marks: Iterable[Mark]) -> list[Step]:
    """Return the steps that lie in no mark of a dose."""
    spans = [(mark.start_s, mark.end_s) for mark in marks if mark.label == DOSED]
    return [step for step in steps if not any(a <= step.begin_s < b for a, b in spans)]


def waits_of(loop: Loop) -> list[tuple[float, float]]:
    """Return when the loop waits for input, or makes it between its steps."""
    steps = list(loop.steps)
    if loop.waits == "none":
        return [(a.end_s, b.begin_s) for a, b in itertools.pairwise(steps)]
    return [(one.begin_s, one.begin_s + one.wait_s) for one in steps if one.wait_s > 0]


def _acting(parts: Iterable[LoopPart]) -> set[str]:
    """Return the labels of the functions in which input is made: a model that is set to evaluate
    there, as by an agent that acts, makes input, too."""
    places = [(part.place, part.inner) for part in parts if part.kind == INPUT_KIND]
    inner = {one.function for place, one in places if one and one.function != place.function}
    return {evaluated_in(function) for function in inner}


def loops_beside(
    loop: Loop | None, timeline: Timeline, *, parts: Iterable[LoopPart] = ()
) -> tuple[list[Loop], list[Loop]]:
    """Return the calls that the loop's thread makes beside the loop's steps, and evaluations.

    Examples: the generator of a GAN, or the run that fetches a batch for the run that trains. A
    call that updates no variable is an evaluation, unless it is a source of the step's input, as
    the action of an agent.
    """
    if loop is None or loop.kind not in CALL_KINDS:
        return [], []
    others = [one for one in list(timeline.loops.values()) if one is not loop]
    others = [one for one in others if one.kind in CALL_KINDS and one.thread == loop.thread]
    inputs = [part for part in parts if part.kind == INPUT_KIND]
    places = [place for part in inputs for place in (part.place, part.inner) if place is not None]
    lines = {f"{os.path.basename(place.file)}:{place.line}" for place in places}
    calls = [one for one in others if one.trains or not loop.trains or one.where in lines]
    return calls, [one for one in others if one not in calls]


def steps_beside(calls: Iterable[Loop], *, start_s: float) -> tuple[Step, ...]:
    """Return the steps of these loops since then, in order."""
    steps = (step for one in calls for step in list(one.steps))
    return tuple(sorted(step for step in steps if step.begin_s >= start_s))
