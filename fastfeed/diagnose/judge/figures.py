"""The loop in numbers: where the time of its steps went, without warm-up and experiments."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastfeed.diagnose.diagnosis import Figures
from fastfeed.diagnose.evidence import FRAMEWORK, LOCK, OTHER, Evidence, LoopPart
from fastfeed.diagnose.judge import signals
from fastfeed.diagnose.judge.backlog import backlog_steps, before_pace_change
from fastfeed.steps.timeline import OBSERVING, UNOBSERVED, Mark, Step

Floats = np.ndarray[Any, np.dtype[np.float64]]
PAUSE_KINDS = ("evaluation", "checkpoint", "callback", "pause")
FASTFEED_KINDS = ("experiment", OBSERVING, UNOBSERVED)
MAX_INPUT_SHARE = 0.95  # share of the time: with more input the rest says nothing
BLOCKS = 10  # parts of the time whose differences give the ranges
MODELLED_ERROR = 0.03  # error of a starvation that follows from other events
OUTLIER_RATIO = 5.0  # a step of this multiple of the median, and
OUTLIER_S = 0.03  # of this many seconds above it, contains a pause
USUAL_SHARE = 0.3  # share of the steps: marks of more steps are typical of the loop, not pauses
MAX_RARE_SHARE = 0.1  # the same for outliers
MAX_REGULAR_SHARE = 1 / 3  # the same for outliers at every n-th step
MIN_EQUAL_INTERVALS = 5  # equal intervals that are no coincidence
# Share of the time from which a waiting line reads a loss; evaluations take less.
MIN_LOSS_READING_SHARE = 0.5
MIN_WORKING_SHARE = 0.7  # share of the time that a device or a thread works, or waits
EPOCH_START_STEPS = 2  # steps of an epoch that wait for its start


@dataclass(frozen=True)
class StepTable:
    """The observed steps in columns, one entry for each step, in seconds.

    `period` is the time from `begin` to the next step's. Its parts are the `wait` for input, the
    `boundary` (the wait, and the time between loops, at the start of an epoch), `converted` (what
    the loop's thread does to a batch before its step can run), the time `inside` the step, the
    `host`'s work beside it, and the `pause`. `pauses`: start, length and name ("" if unknown).
    """

    begin: Floats
    period: Floats
    wait: Floats
    inside: Floats
    host: Floats
    pause: Floats
    boundary: Floats
    pauses: tuple[tuple[float, float, str], ...]
    converted: Floats

    @property
    def seconds(self) -> float:
        """The whole time."""
        return float(self.period.sum())

    def share(self, part: Floats) -> float:
        """Return the share of the time that a column takes."""
        return float(part.sum()) / self.seconds if self.seconds else 0.0

    @property
    def waited(self) -> float:
        """Share of the time in which steps wait for a batch; conversions do not count."""
        return self.share(self.wait + self.boundary)

    @property
    def starvation(self) -> float:
        """Share of the time in which a step could have run but had no input."""
        return min(1.0, self.share(self.starved))

    @property
    def starved(self) -> Floats:
        """Seconds of each step in which it could have run but had no input in its final form."""
        found: Floats = self.wait + self.boundary + self.converted
        return found

    @property
    def unnamed_s(self) -> float:
        """Seconds of pauses without a name."""
        return sum(length for _, length, name in self.pauses if not name)


_NONE: Floats = np.zeros(0)
_NO_STEPS = StepTable(_NONE, _NONE, _NONE, _NONE, _NONE, _NONE, _NONE, (), _NONE)


def step_table_of(evidence: Evidence) -> StepTable:
    """Return the steps of the main loop between the evidence's start and end."""
    pairs = _measured(evidence)
    if not pairs:
        return _NO_STEPS
    begin, end, following, period, wait, gap = _times(evidence, pairs)
    body = np.maximum(period - gap - wait, 0.0)
    pauses, usual = _pauses(evidence, begin, end=following)
    beside = _covered(begin, following, marks=usual)
    in_body = _covered(begin + wait, end, marks=pauses)
    in_gap = _covered(end, following, marks=pauses)
    body, gap = np.maximum(body - in_body, 0.0), np.maximum(gap - in_gap, 0.0)
    first = _first_of_epochs(begin, epochs=[m for m in evidence.marks if m.kind == "epoch"])
    named = [
        (m.start_s, m.end_s - m.start_s, m.label or m.kind) for m in pauses if m.end_s > m.start_s
    ]
    body_out, gap_out = _outliers(body), _outliers(gap)
    at_end = _ends_epoch(first)
    boundary = np.where(at_end, gap_out, 0.0) + np.where(
        first, np.maximum(wait - np.median(wait), 0.0), 0.0
    )
    if _dispatches(evidence, float(body_out.sum() / period.sum())):
        body_out = np.zeros(len(body))
    unmarked = body_out + np.where(at_end, 0.0, gap_out)
    unnamed = [(float(b), float(s), "") for b, s in zip(begin, unmarked, strict=True) if s > 0]
    body, gap = body - body_out, gap - gap_out
    wait = np.where(first, np.minimum(wait, np.median(wait)), wait)
    wait, host, asleep = _gap_parts(evidence, wait, gap=gap)
    body, beside = body + asleep, np.maximum(beside - asleep, 0.0)
    body, host = np.maximum(body - np.maximum(beside - host, 0.0), 0.0), np.maximum(host, beside)
    parts = _within(period, wait, boundary, in_body + in_gap + unmarked, body, host)
    wait, boundary, pause, body, host = parts
    waited = float((wait + boundary).sum()) / max(1e-9, float(period.sum()))
    converted = _converted(evidence, body, period=period, waited=waited)
    return StepTable(
        begin,
        period,
        wait,
        body - converted,
        host,
        pause,
        boundary,
        tuple(sorted(named + unnamed)),
        converted,
    )


def _measured(evidence: Evidence) -> list[tuple[Step, Step]]:
    """Return the steps that count, each with the next one."""
    steps = list(evidence.loop.steps) if evidence.loop is not None else []
    backlog = backlog_steps(steps, evidence.marks)
    observed = [
        i
        for i in range(len(steps) - 1)
        if i not in backlog and _observed(steps[i], steps[i + 1], evidence=evidence)
    ]
    counted = before_pace_change(observed, steps, marks=evidence.marks)
    return [(steps[i], steps[i + 1]) for i in counted]


def _times(evidence: Evidence, pairs: list[tuple[Step, Step]]) -> tuple[Floats, ...]:
    """Return begin, end, begin of the next step, period, wait and gap of each step.

    The last three are without the time that the diagnosis itself took.
    """
    columns = np.array([[s.begin_s, s.end_s, s.wait_s, t.begin_s] for s, t in pairs], np.float64)
    begin, end, wait, following = columns.T
    own_marks = [mark for mark in evidence.marks if mark.kind in FASTFEED_KINDS]
    period = np.maximum(following - begin - _covered(begin, following, marks=own_marks), 1e-9)
    gap = np.maximum(following - end, 0.0)
    gap = np.maximum(gap - _covered(end, following, marks=own_marks), 0.0)
    calls = [Mark("step", s.begin_s, s.end_s) for s in evidence.beside]
    waiting = [Mark("step", s.begin_s, s.begin_s + s.wait_s) for s in evidence.beside]
    called = _covered(end, following, marks=calls)
    waits = _covered(end, following, marks=waiting)
    gap, wait = np.maximum(gap - called, 0.0), np.clip(wait + waits, 0.0, period)
    wait, period = _unslowed(evidence, wait, period=period)
    return begin, end, following, period, wait, gap


def figures_of(evidence: Evidence, table: StepTable) -> Figures | None:
    """Return the figures of the steps; None without any step."""
    if not len(table.period):
        return None
    starved = [part.starvation for part in blocks(table)]
    rate = len(table.period) / table.seconds
    rates = [len(part.period) / part.seconds for part in blocks(table)]
    slow, fast = float(np.quantile(rates, 0.25)), float(np.quantile(rates, 0.75))
    low, high = _range(starved, table.starvation)
    if evidence.loop is not None and evidence.loop.waits != "exact":
        low, high = max(0.0, low - MODELLED_ERROR), min(1.0, high + MODELLED_ERROR)
    shares = {"step": table.inside, "wait": table.starved, "host": table.host, "pause": table.pause}
    compute = float(table.inside.sum())
    return Figures(
        steps=len(table.period),
        seconds=table.seconds,
        steps_per_second=rate,
        # a few long pauses leave the quartiles above it
        steps_per_second_range=(min(slow, rate), max(fast, rate)),
        step_s=float(np.median(table.inside)),
        period_s=float(np.median(table.period)),
        wait_p50_s=float(np.median(table.starved)),
        wait_p99_s=float(np.quantile(table.starved, 0.99)),
        starvation=table.starvation,
        starvation_range=(low, high),
        utilisation=min(1.0, compute / table.seconds),
        shares={name: table.share(part) for name, part in shares.items()},
    )


def blocks(table: StepTable) -> list[StepTable]:
    """Return the table in parts with equal numbers of steps."""
    count = len(table.period)
    edges = np.linspace(0, count, min(BLOCKS, count) + 1).astype(int)
    fields = ("begin", "period", "wait", "inside", "host", "pause", "boundary", "converted")
    return [
        StepTable(**{name: getattr(table, name)[a:b] for name in fields}, pauses=())
        for a, b in itertools.pairwise(edges)
    ]


def without_unnamed_pauses(table: StepTable) -> StepTable:
    """Return the table without the pauses that have no name."""
    total = float(table.pause.sum())
    if not total:
        return table
    return replace(table, pause=table.pause * max(0.0, 1 - table.unnamed_s / total))


def _pauses(evidence: Evidence, begin: Floats, *, end: Floats) -> tuple[list[Mark], list[Mark]]:
    """Return the marks that are pauses, and those of so many steps that they are typical of the
    loop."""
    marks = [
        m
        for m in evidence.marks
        if m.kind in PAUSE_KINDS and len(begin) and begin[0] <= m.start_s <= end[-1]
    ]
    counts: dict[str, int] = {}
    for mark in marks:
        counts[mark.label or mark.kind] = counts.get(mark.label or mark.kind, 0) + 1
    names = {name for name, count in counts.items() if count > USUAL_SHARE * len(begin)}
    usual = [mark for mark in marks if (mark.label or mark.kind) in names]
    return [mark for mark in marks if (mark.label or mark.kind) not in names], usual


def _observed(step: Step, following: Step, *, evidence: Evidence) -> bool:
    inside = step.begin_s >= evidence.start_s and following.begin_s <= evidence.end_s
    return inside and not step.free


def _unslowed(evidence: Evidence, wait: Floats, *, period: Floats) -> tuple[Floats, Floats]:
    """Return waits and periods without the slow-down by tracing, if iterations were traced seldom.

    Tracing slows the code that makes the input. Input then gets the share of the time that samples
    of the whole time show; the rest of an iteration takes as long as before.
    """
    made = sum(part.share for part in evidence.parts_of("input"))
    waited = float(wait.sum())
    if (
        not waited
        or not 0 < made < MAX_INPUT_SHARE
        or not any(mark.kind == UNOBSERVED for mark in evidence.marks)
    ):
        return wait, period
    untraced = (float(period.sum()) - waited) * made / (1 - made)
    corrected = wait * min(1.0, untraced / waited)
    return corrected, period - wait + corrected


def _covered(begin: Floats, end: Floats, *, marks: Sequence[Mark]) -> Floats:
    """Return how much of each interval the marks cover; overlaps count once."""
    covered = np.zeros(len(begin))
    until = -np.inf
    for mark in sorted(marks, key=lambda m: m.start_s):
        start, stop = max(mark.start_s, until), mark.end_s
        if stop > start:
            covered += np.maximum(np.minimum(end, stop) - np.maximum(begin, start), 0.0)
            until = stop
    return covered


def _within(period: Floats, *parts: Floats) -> list[Floats]:
    """Return the parts of each period, each one cut to what those before it leave over.

    Marks may overlap, also with the time of the diagnosis.
    """
    left, found = period.copy(), []
    for part in parts:
        found.append(np.clip(part, 0.0, left))
        left = left - found[-1]
    return found


def _first_of_epochs(begin: Floats, *, epochs: Sequence[Mark]) -> Any:
    """Return a mask of the first steps of each epoch that began after the first observed step."""
    first = np.zeros(len(begin), bool)
    for mark in epochs:
        at = int(np.searchsorted(begin, mark.start_s))
        if 0 < at < len(begin):
            first[at : at + EPOCH_START_STEPS] = True
    return first


def _ends_epoch(first: Any) -> Any:
    """Return a mask of the steps before the first one of an epoch."""
    ends = np.zeros(len(first), bool)
    ends[:-1] = first[1:] & ~first[:-1]
    return ends


def _outliers(values: Floats) -> Floats:
    """Return the excess of outliers over the median; zeros if outliers are not rare."""
    if len(values) < EPOCH_START_STEPS:
        return np.zeros(len(values))
    middle = float(np.median(values))
    far = values > max(OUTLIER_RATIO * middle, middle + OUTLIER_S)
    between = np.diff(np.flatnonzero(far))
    regular = len(between) >= MIN_EQUAL_INTERVALS and bool(np.all(between == between[0]))
    rare = far.mean() <= (MAX_REGULAR_SHARE if regular else MAX_RARE_SHARE)
    return np.where(far, values - middle, 0.0) if rare else np.zeros(len(values))


def _dispatches(evidence: Evidence, share: float) -> bool:
    """Return True if short steps only enqueue work that later long steps wait for.

    The long steps have the `share` of the time. They spend it in the step's lines (or, if it is
    most of the time, in the line that reads the loss): the loop's thread waits, while an
    accelerator or native threads work.
    """
    trainer = evidence.trainer
    if trainer is None or not share or not evidence.parts:
        return False
    native = sum(task.cpu_s for task in evidence.tasks_of(FRAMEWORK)) / evidence.seconds
    works = max(native, *(gpu.busy for gpu in evidence.machine.gpus), 0.0) >= MIN_WORKING_SHARE
    elsewhere = sum(
        part.share
        for part in evidence.parts
        if part.kind != "step" and not (share >= MIN_LOSS_READING_SHARE and _reads_loss(part))
    )
    waits = trainer.share(LOCK, OTHER) >= MIN_WORKING_SHARE * share
    return works and waits and elsewhere < 0.5 * share


def _reads_loss(part: LoopPart) -> bool:
    """Return True if a line beside the step only waits, like one that reads a loss."""
    waiting = part.busy.get(LOCK, 0.0) + part.busy.get(OTHER, 0.0)
    return part.kind == "host" and waiting >= MIN_WORKING_SHARE


def _gap_parts(evidence: Evidence, wait: Floats, *, gap: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the wait, the host's work, and the part of the gap that belongs to the step.

    If steps contain no wait, their input is made between them, and only samples show its share.
    """
    made = sum(part.share for part in evidence.parts_of("input"))
    host = sum(part.share for part in evidence.parts_of("host"))
    asleep = signals.simulated_share(evidence)
    if evidence.loop is None or evidence.loop.waits != "none":
        return wait, gap * (1 - asleep), gap * asleep
    of_gap = made / (made + host) if made + host else 0.0
    return wait + gap * of_gap, gap * (1 - of_gap - asleep), gap * asleep


def _converted(evidence: Evidence, inside: Floats, *, period: Floats, waited: float) -> Floats:
    """Return the time of conversions in each step, the same part of all steps.

    Samples of the loop's thread give that part: a session converts its feed before it runs, and
    loops prepare the batches that they receive.
    """
    share = signals.conversion_share(evidence) + signals.preparation(evidence, waited)[0]
    total = float(inside.sum())
    if share < signals.MIN_SHARE or not total:
        return np.zeros(len(inside))
    return inside * min(signals.MAX_CONVERTED, share * float(period.sum()) / total)


def _range(values: Sequence[float], middle: float) -> tuple[float, float]:
    """Return the interval of two standard errors about the middle."""
    error = 2 * float(np.std(values)) / max(1, len(values)) ** 0.5
    return max(0.0, middle - error), min(1.0, middle + error)
