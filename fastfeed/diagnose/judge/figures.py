"""The loop in numbers: where the time of its steps went, without warm-up and experiments."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastfeed.diagnose.diagnosis import Figures
from fastfeed.diagnose.evidence import FRAMEWORK, LOCK, OTHER, TRAINER, Evidence, LoopPart
from fastfeed.diagnose.judge import signals
from fastfeed.diagnose.judge.backlog import on_backlog, unchanged
from fastfeed.steps.timeline import (
    OBSERVING,
    UNOBSERVED,
    Mark,
    Step,
)

Floats = np.ndarray[Any, np.dtype[np.float64]]
PAUSES = ("evaluation", "checkpoint", "callback", "pause")
OURS = ("experiment", OBSERVING, UNOBSERVED)
MOSTLY = 0.95  # of the time is input: the rest says nothing
BLOCKS = 10  # parts of the time whose differences give the ranges
MODELLED = 0.03  # possible error of a wait that follows from other events
OUTLIER = 5.0  # times the median and
OUTLIER_S = 0.03  # seconds above it: a pause, not a slow step
OFTEN = 0.3  # share of the steps: what they have is no pause
RARE = 0.1  # above this share of the steps they are no pauses but typical of the loop,
IN_TURN = 1 / 3  # except for every n-th step
MOST = 0.5  # of the time: no evaluation takes so much
WORKS = 0.7  # of the time an accelerator or native threads work, which steps wait for
FEWEST = 5  # equal intervals that are no coincidence
FIRST = 2  # steps of an epoch that wait for its start


@dataclass(frozen=True)
class StepTable:
    """The observed steps, one entry each, in seconds: `begin`; `period`, until the next one began;
    and its parts: `wait` for input, `inside` the step, `host` beside it, `pause`; `boundary` is the
    wait (and the time between loops) at the start of an epoch, which is no part of `wait`."""

    begin: Floats
    period: Floats
    wait: Floats
    inside: Floats
    host: Floats
    pause: Floats
    boundary: Floats
    pauses: tuple[tuple[float, float, str], ...]  # when, how long, what
    # processing of a batch on the loop's thread before its step can run; no part of `inside`
    converted: Floats

    @property
    def seconds(self) -> float:
        """The whole time."""
        return float(self.period.sum())

    def share(self, part: Floats) -> float:
        """Return the share of the time."""
        return float(part.sum()) / self.seconds if self.seconds else 0.0

    @property
    def starvation(self) -> float:
        """Share of the time for which a step could have run and had no input."""
        return min(1.0, self.share(self.starved))

    @property
    def starved(self) -> Floats:
        """Seconds of each step for which it could have run and had no input, or none in its final
        form."""
        found: Floats = self.wait + self.boundary + self.converted
        return found


_NONE: Floats = np.zeros(0)
_NO_ROWS = StepTable(_NONE, _NONE, _NONE, _NONE, _NONE, _NONE, _NONE, (), _NONE)


def rows_of(evidence: Evidence) -> StepTable:
    """Return the steps of the main loop between the evidence's start and end."""
    pairs = _measured(evidence)
    if not pairs:
        return _NO_ROWS
    begin, end, following, period, wait, gap = _times(evidence, pairs)
    body = np.maximum(period - gap - wait, 0.0)
    pauses, often = _pauses(evidence, begin, end=following)
    beside = _covered(begin, following, marks=often)
    in_body, in_gap = (
        _covered(begin + wait, end, marks=pauses),
        _covered(end, following, marks=pauses),
    )
    body, gap = np.maximum(body - in_body, 0.0), np.maximum(gap - in_gap, 0.0)
    first = _first_of_epochs(begin, epochs=[m for m in evidence.marks if m.kind == "epoch"])
    found = [
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
    found += [(float(b), float(s), "") for b, s in zip(begin, unmarked, strict=True) if s > 0]
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
        tuple(sorted(found)),
        converted,
    )


def _measured(evidence: Evidence) -> list[tuple[Step, Step]]:
    """Return the steps that count, each with the next one."""
    steps = list(evidence.loop.steps) if evidence.loop is not None else []
    spared = on_backlog(steps, evidence.marks)
    watched = (
        i for i in range(len(steps) - 1) if _watched(steps[i], steps[i + 1], evidence=evidence)
    )
    inside = unchanged([i for i in watched if i not in spared], steps, marks=evidence.marks)
    return [(steps[i], steps[i + 1]) for i in inside]


def _times(evidence: Evidence, pairs: list[tuple[Step, Step]]) -> tuple[Floats, ...]:
    """Return begin, end, begin of the next step, period, wait and gap of each step, without what
    the diagnosis itself took."""
    table = np.array([[s.begin_s, s.end_s, s.wait_s, t.begin_s] for s, t in pairs], np.float64)
    begin, end, wait, following = table.T
    our_marks = [mark for mark in evidence.marks if mark.kind in OURS]
    ours = _covered(begin, following, marks=our_marks)
    period = np.maximum(following - begin - ours, 1e-9)
    gap = np.maximum(following - end, 0.0)
    ours_in_gap = _covered(end, following, marks=our_marks)
    gap = np.maximum(gap - ours_in_gap, 0.0)
    called = _covered(
        end, following, marks=[Mark("step", s.begin_s, s.end_s) for s in evidence.beside]
    )
    waits = _covered(
        end,
        following,
        marks=[Mark("step", s.begin_s, s.begin_s + s.wait_s) for s in evidence.beside],
    )
    gap, wait = np.maximum(gap - called, 0.0), np.clip(wait + waits, 0.0, period)
    wait, period = _unslowed(evidence, wait, period=period)
    return begin, end, following, period, wait, gap


def figures_of(evidence: Evidence, rows: StepTable) -> Figures | None:
    """Return the figures; None without any step."""
    if not len(rows.period):
        return None
    starved = [part.starvation for part in blocks(rows)]
    rate = len(rows.period) / rows.seconds
    rates = [len(part.period) / part.seconds for part in blocks(rows)]
    slow, quick = float(np.quantile(rates, 0.25)), float(np.quantile(rates, 0.75))
    low, high = _range(starved, rows.starvation)
    if evidence.loop is not None and evidence.loop.waits != "exact":
        low, high = max(0.0, low - MODELLED), min(1.0, high + MODELLED)
    shares = {"step": rows.inside, "wait": rows.starved, "host": rows.host, "pause": rows.pause}
    compute = float(rows.inside.sum())
    return Figures(
        steps=len(rows.period),
        seconds=rows.seconds,
        steps_per_second=rate,
        # a few long pauses leave the quartiles above it
        steps_per_second_range=(min(slow, rate), max(quick, rate)),
        step_s=float(np.median(rows.inside)),
        period_s=float(np.median(rows.period)),
        wait_p50_s=float(np.median(rows.starved)),
        wait_p99_s=float(np.quantile(rows.starved, 0.99)),
        starvation=rows.starvation,
        starvation_range=(low, high),
        utilisation=min(1.0, compute / rows.seconds),
        shares={name: rows.share(part) for name, part in shares.items()},
    )


def blocks(rows: StepTable) -> list[StepTable]:
    """Return parts of the time with equal numbers of steps."""
    count = len(rows.period)
    edges = np.linspace(0, count, min(BLOCKS, count) + 1).astype(int)
    fields = ("begin", "period", "wait", "inside", "host", "pause", "boundary", "converted")
    return [
        StepTable(**{name: getattr(rows, name)[a:b] for name in fields}, pauses=())
        for a, b in itertools.pairwise(edges)
    ]


def without_unnamed(rows: StepTable) -> StepTable:
    """Return the table without pauses that have no name."""
    total, unnamed = (
        float(rows.pause.sum()),
        sum(length for _, length, what in rows.pauses if not what),
    )
    return replace(rows, pause=rows.pause * max(0.0, 1 - unnamed / total)) if total else rows


def _pauses(evidence: Evidence, begin: Floats, *, end: Floats) -> tuple[list[Mark], list[Mark]]:
    """Return the marks that are pauses, and those that nearly every step has, which are typical of
    the loop."""
    marks = [
        m
        for m in evidence.marks
        if m.kind in PAUSES and len(begin) and begin[0] <= m.start_s <= end[-1]
    ]
    counts: dict[str, int] = {}
    for mark in marks:
        counts[mark.label or mark.kind] = counts.get(mark.label or mark.kind, 0) + 1
    often = {name for name, count in counts.items() if count > OFTEN * len(begin)}
    usual = [mark for mark in marks if (mark.label or mark.kind) in often]
    return [mark for mark in marks if (mark.label or mark.kind) not in often], usual


def _watched(step: Step, following: Step, *, evidence: Evidence) -> bool:
    inside = step.begin_s >= evidence.start_s and following.begin_s <= evidence.end_s
    return inside and not step.free


def _unslowed(evidence: Evidence, wait: Floats, *, period: Floats) -> tuple[Floats, Floats]:
    """Correct waits of iterations that were traced seldom, because tracing slows what makes the
    input: input has the share that samples of all the time show, the rest of an iteration takes as
    long as before."""
    made, waited = (
        sum(part.share for part in evidence.parts if part.kind == "input"),
        float(wait.sum()),
    )
    if (
        not waited
        or not 0 < made < MOSTLY
        or not any(mark.kind == UNOBSERVED for mark in evidence.marks)
    ):
        return wait, period
    truly = (float(period.sum()) - waited) * made / (1 - made)
    left = wait * min(1.0, truly / waited)
    return left, period - wait + left


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
    """Return the parts of each period, cut to what those before leave: marks may overlap, also with
    the time of the diagnosis."""
    left, found = period.copy(), []
    for part in parts:
        found.append(np.clip(part, 0.0, left))
        left = left - found[-1]
    return found


def _first_of_epochs(begin: Floats, *, epochs: Sequence[Mark]) -> Any:
    """Return the first steps of each epoch that began after the first observed step."""
    first = np.zeros(len(begin), bool)
    for mark in epochs:
        at = int(np.searchsorted(begin, mark.start_s))
        if 0 < at < len(begin):
            first[at : at + FIRST] = True
    return first


def _ends_epoch(first: Any) -> Any:
    """Return the step before the first one of an epoch: after it the next epoch starts."""
    ends = np.zeros(len(first), bool)
    ends[:-1] = first[1:] & ~first[:-1]
    return ends


def _outliers(values: Floats) -> Floats:
    """Return what rare values have above the median; nothing if they are not rare."""
    if len(values) < FIRST:
        return np.zeros(len(values))
    middle = float(np.median(values))
    far = values > max(OUTLIER * middle, middle + OUTLIER_S)
    between = np.diff(np.flatnonzero(far))
    in_turn = len(between) >= FEWEST and bool(np.all(between == between[0]))
    rare = far.mean() <= (IN_TURN if in_turn else RARE)
    return np.where(far, values - middle, 0.0) if rare else np.zeros(len(values))


def _dispatches(evidence: Evidence, share: float) -> bool:
    """Return True if short steps only enqueue work that a later long step waits for. Their `share`
    of the time is spent in the step's lines (or, if it is most of all, where its loss is read); the
    loop's thread waits, and an accelerator or native threads do not."""
    trainer = next((task for task in evidence.tasks if task.role == TRAINER), None)
    if trainer is None or not share or not evidence.parts:
        return False
    native = sum(task.cpu_s for task in evidence.tasks if task.role == FRAMEWORK) / (
        evidence.end_s - evidence.start_s
    )
    works = max(native, *(gpu.busy for gpu in evidence.machine.gpus), 0.0) >= WORKS
    others = (
        part
        for part in evidence.parts
        if part.kind != "step" and not (share >= MOST and _reads(part))
    )
    elsewhere = sum(part.share for part in others)
    return works and elsewhere < 0.5 * share and trainer.share(LOCK, OTHER) >= WORKS * share


def _reads(part: LoopPart) -> bool:
    """Return True if a line beside the step only waits, as one does that reads a loss."""
    return part.kind == "host" and part.busy.get(LOCK, 0.0) + part.busy.get(OTHER, 0.0) >= WORKS


def _gap_parts(evidence: Evidence, wait: Floats, *, gap: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the wait, the host's work and what belongs to the step after all. If steps contain no
    wait, their input is made between them, and only samples show its share. The host's lines inside
    a watched loop are known from samples, too."""
    made = sum(part.share for part in evidence.parts if part.kind == "input")
    host = sum(part.share for part in evidence.parts if part.kind == "host")
    asleep = signals.simulated(evidence)
    if evidence.loop is None or evidence.loop.waits != "none":
        return wait, gap * (1 - asleep), gap * asleep
    of_gap = made / (made + host) if made + host else 0.0
    return wait + gap * of_gap, gap * (1 - of_gap - asleep), gap * asleep


def _converted(evidence: Evidence, inside: Floats, *, period: Floats, waited: float) -> Floats:
    """Return the same part of every step, from samples of the loop's thread: a session converts its
    feed before it runs, and loops prepare what they get from others."""
    share, total = (
        signals.converted(evidence) + signals.prepared(evidence, waited)[0],
        float(inside.sum()),
    )
    if share < signals.LEAST or not total:
        return np.zeros(len(inside))
    return inside * min(signals.MOST, share * float(period.sum()) / total)


def _range(values: Sequence[float], middle: float) -> tuple[float, float]:
    """Return two standard errors about the middle."""
    error = 2 * float(np.std(values)) / max(1, len(values)) ** 0.5
    return max(0.0, middle - error), min(1.0, middle + error)
