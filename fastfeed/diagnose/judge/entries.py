"""Entries of the ledger: what the observed steps, marks and samples say of the loop's time."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fastfeed.diagnose.evidence import FRAMEWORK, LOCK, OTHER, PYTHON, Evidence
from fastfeed.diagnose.judge import signals
from fastfeed.diagnose.judge.step_ledger import Floats, Ledger
from fastfeed.model.workload import INPUT_BOUND
from fastfeed.steps.timeline import ARRAYS_NOTE, FASTFEED_KINDS, Mark, Step, covered

NO_STEP = ("evaluation", "checkpoint")  # kinds that are pauses however often they come
PAUSE_KINDS = ("evaluation", "checkpoint", "callback", "pause")
Pause = tuple[float, float, str]  # start, seconds, name
OTHER_RUNS = "other runs of the session"
BETWEEN_EPOCHS = "work between epochs"
OUTLIER_RATIO = 5.0  # a step of this multiple of the median, and
OUTLIER_S = 0.03  # of this many seconds above it, contains a pause
RARE = 1 / 3  # share of the steps: what comes after more of them is typical of the loop


def ledger_of(evidence: Evidence) -> Ledger:
    """Return the ledger of the main loop's steps between the evidence's start and end.

    What runs between epochs is no input, unless it is a request for a batch: the first waits, and
    marks of kind "start" and "end" (a loader that starts its workers, or ends them).
    """
    pairs = _measured(evidence)
    if not pairs:
        none = np.zeros(0)
        return Ledger(none, none, none, none, none, none, none, none)
    begin, end, following, period, wait, gap = _times(evidence, pairs)
    if evidence.loop is not None and evidence.loop.note.startswith(ARRAYS_NOTE):
        wait = np.zeros(len(wait))  # slicing arrays is the framework's part of a step
    body = np.maximum(period - gap - wait, 0.0)
    pauses, usual = _pauses(evidence, begin, end=following)
    in_body, in_gap = (
        np.minimum(part, covered(since, until, marks=pauses))
        for part, since, until in ((body, begin + wait, end), (gap, end, following))
    )
    body, gap = body - in_body, gap - in_gap
    first = _first_of_epochs(begin, epochs=[m for m in evidence.marks if m.kind == "epoch"])
    marks = [*_starts(evidence, following), *_ends(evidence, end)]
    starting = np.minimum(gap, covered(end, following, marks=marks))
    gap, excess = gap - starting, np.maximum(wait - np.median(wait), 0.0) * first
    wait = wait - excess
    body_out, gap_out = _outliers(body), _outliers(gap)
    body_out = _outside_step(evidence, body_out, named_s=float(in_body.sum()), period=period)
    # a loop that is over for good does something else before the next epoch, however short
    at_end = _ends_epoch(first)
    gap_out = np.where(at_end, np.maximum(gap - np.median(gap), 0.0), gap_out)
    named = [(m.start_s, m.end_s - m.start_s, m.label or m.kind) for m in pauses]
    for extra, name in ((body_out + gap_out * ~at_end, ""), (gap_out * at_end, BETWEEN_EPOCHS)):
        named += [(float(b), float(s), name) for b, s in zip(begin, extra, strict=True) if s > 0]
    body, gap = body - body_out, gap - gap_out
    of_step, made, of_host = _gap_parts(evidence, period=period, wait=wait, body=body)
    body, wait, host = body + of_step * gap, wait + made * gap, of_host * gap
    bytecode_s = sum(part.share_in(PYTHON) for part in evidence.parts_of("host")) * period.sum()
    beside = np.maximum(covered(begin, following, marks=usual) - host, 0.0)
    rest_s = max(0.0, bytecode_s - float(host.sum() + beside.sum()))
    beside = np.minimum(body, beside + body * rest_s / max(1e-9, float(body.sum())))
    body, host = body - beside, host + beside  # the body of a loop holds more than its step
    pause = in_body + in_gap + body_out + gap_out
    wait, start, pause, body, host = _within(period, wait, excess + starting, pause, body, host)
    waited = float((wait + start).sum() / period.sum())
    converted = np.minimum(body, [step.converted_s for step, _ in pairs])
    converted += _received(evidence, body - converted, period=period, waited=waited)
    parts = (wait, start, converted, body - converted, host, pause)
    return _by_device(Ledger(begin, period, *parts, _joined(named, begin)), evidence)


def _by_device(ledger: Ledger, evidence: Evidence) -> Ledger:
    """Return the ledger with the starvation that the accelerator's own clock shows, if it was read:
    while it still computes, a wait of the host delays nothing."""
    gap = evidence.device_gap
    left = 1.0 if gap is None else min(1.0, gap.share / max(1e-9, ledger.starvation))
    wait, start, converted = (left * one for one in (ledger.wait, ledger.start, ledger.converted))
    inside = ledger.inside + ledger.starved - wait - start - converted
    return replace(ledger, wait=wait, start=start, converted=converted, inside=inside)


def _joined(pauses: Sequence[Pause], begin: Floats) -> tuple[Pause, ...]:
    """Return the pauses in order; those without a step between them are one, with the names of what
    runs in it."""
    found: list[Pause] = []
    last = -1
    for start_s, length_s, name in sorted(one for one in pauses if one[1] > 0):
        step = int(np.searchsorted(begin, start_s, side="right"))
        if found and step == last:
            first_s, before_s, names = found.pop()
            known = {*names.split(", "), *name.split(", ")} - {"", BETWEEN_EPOCHS}
            name = ", ".join(sorted(known)) or names or name
            start_s, length_s = first_s, before_s + length_s
        found.append((start_s, length_s, name))
        last = step
    return tuple(found)


def observing_s(evidence: Evidence, ledger: Ledger) -> float:
    """Return the seconds of the watch that are fastfeed's own, with its experiments.

    They lie between the first and the last step, and in no step of the ledger.
    """
    if not len(ledger):
        return 0.0
    span_s = float(ledger.begin[-1] + ledger.period[-1] - ledger.begin[0])
    return max(0.0, span_s - ledger.seconds)


def _kind(evidence: Evidence, *kinds: str) -> list[Mark]:
    return [mark for mark in evidence.marks if mark.kind in kinds]


def _measured(evidence: Evidence) -> list[tuple[Step, Step]]:
    """Return the steps that count, each with the next one."""
    steps = list(evidence.loop.steps) if evidence.loop is not None else []
    return [
        (one, following)
        for one, following in itertools.pairwise(steps)
        if not one.free and one.begin_s >= evidence.start_s and following.begin_s <= evidence.end_s
    ]


def _starts(evidence: Evidence, following: Floats) -> list[Mark]:
    """Return the marks of loaders that start for the loop: the last one before a step.

    Others start for an evaluation.
    """
    marks = _kind(evidence, "start")
    return list({int(np.searchsorted(following, mark.start_s)): mark for mark in marks}.values())


def _ends(evidence: Evidence, end: Floats) -> list[Mark]:
    """Return the marks of requests that ended an iteration of the loop, behind its last step."""
    known = set(end.tolist())
    return [mark for mark in _kind(evidence, "end") if mark.start_s in known]


def _times(evidence: Evidence, pairs: list[tuple[Step, Step]]) -> tuple[Floats, ...]:
    """Return begin, end, begin of the next step, period, wait and gap of each step.

    The last three are without the time that the diagnosis itself took.
    """
    columns = np.array([[s.begin_s, s.end_s, s.wait_s, t.begin_s] for s, t in pairs], np.float64)
    begin, end, wait, following = columns.T
    own = _kind(evidence, *FASTFEED_KINDS)
    period = np.maximum(following - begin - covered(begin, following, marks=own), 1e-9)
    gap = np.maximum(following - end, 0.0)
    gap = np.maximum(gap - covered(end, following, marks=own), 0.0)
    beside = [] if _is_rare(evidence, len(pairs)) else evidence.beside  # else of the step
    calls = [Mark("step", s.begin_s, s.end_s) for s in beside]
    waiting = [Mark("step", s.begin_s, s.begin_s + s.wait_s) for s in beside]
    gap = np.maximum(gap - covered(end, following, marks=calls), 0.0)
    wait = np.clip(wait + covered(end, following, marks=waiting), 0.0, period)
    return begin, end, following, period, wait, np.minimum(gap, period - wait)


def _pauses(evidence: Evidence, begin: Floats, *, end: Floats) -> tuple[list[Mark], list[Mark]]:
    """Return the marks that are pauses (evaluations, checkpoints, and what comes in few steps), and
    those that come in so many steps that they are work of the loop."""
    marks = _kind(evidence, *PAUSE_KINDS)
    if _is_rare(evidence, len(begin)):
        marks += [Mark("pause", s.begin_s, s.end_s, OTHER_RUNS) for s in evidence.beside]
    marks = [mark for mark in marks if begin[0] <= mark.start_s <= end[-1]]
    counts = Counter(mark.label for mark in marks if mark.kind not in NO_STEP)
    often = {label for label, count in counts.items() if count > RARE * len(begin)}
    rare = [mark for mark in marks if mark.kind in NO_STEP or mark.label not in often]
    return rare, [mark for mark in marks if mark.kind not in NO_STEP and mark.label in often]


def _is_rare(evidence: Evidence, steps: int) -> bool:
    """Return True if runs beside those of the step come after few steps, as for a report."""
    return len(evidence.beside) <= RARE * steps


def _within(period: Floats, *parts: Floats) -> list[Floats]:
    """Return the parts of each period, each one cut to what those before it leave over."""
    left, found = period.copy(), []
    for part in parts:
        found.append(np.clip(part, 0.0, left))
        left = left - found[-1]
    return found


def _first_of_epochs(begin: Floats, *, epochs: Sequence[Mark]) -> Any:
    """Return a mask of the first step of each epoch that began after the first observed one."""
    first = np.zeros(len(begin), bool)
    for mark in epochs:
        at = int(np.searchsorted(begin, mark.start_s))
        if 0 < at < len(begin):
            first[at] = True
    return first


def _ends_epoch(first: Any) -> Any:
    """Return a mask of the steps before the first one of an epoch."""
    ends = np.zeros(len(first), bool)
    ends[:-1] = first[1:] & ~first[:-1]
    return ends


def _outliers(values: Floats) -> Floats:
    """Return the excess of outliers over the median; zeros if outliers are not rare."""
    middle = float(np.median(values))
    far = values > max(OUTLIER_RATIO * middle, middle + OUTLIER_S)
    return np.where(far, values - middle, 0.0) if far.mean() <= RARE else np.zeros(len(values))


def _outside_step(
    evidence: Evidence, outliers: Floats, *, named_s: float, period: Floats
) -> Floats:
    """Return the outliers without what samples show in the lines of the step, or of the input.

    An agent may act a few times before it learns: its long iterations are steps, and no pauses. So
    are those that wait for short ones, which only enqueued their work: a line that waits while an
    accelerator or native threads compute belongs to the step. `named_s`: known pauses in the same
    iterations.
    """
    total = float(outliers.sum())
    if not total or not evidence.parts_of("step"):
        return outliers
    native = sum(task.cpu_s for task in evidence.tasks_of(FRAMEWORK)) / evidence.seconds
    computes = native >= signals.MOST
    inside = sum(part.share for part in evidence.parts if part.kind != "host")
    for part in evidence.parts_of("host"):
        waits = part.share_in(LOCK, OTHER) >= signals.MOST * part.share
        inside += part.share * (computes and waits)
    found: Floats = outliers * min(1.0, max(0.0, (1 - inside) * period.sum() - named_s) / total)
    return found


def _gap_parts(
    evidence: Evidence, *, period: Floats, wait: Floats, body: Floats
) -> tuple[float, float, float]:
    """Return the parts of the time between two steps in which lines of the step run, input is made,
    and the host works: by the samples of each kind of line beyond its measured time.

    Lines whose results the step takes are input only where no wait for it is measured.
    """
    step, made, host = (
        sum(part.share for part in evidence.parts_of(kind)) for kind in ("step", "input", "host")
    )
    measured = evidence.loop is not None and evidence.loop.waits != "none"
    step = max(0.0, step - float(body.sum() / period.sum())) * measured
    made = max(0.0, made - float(wait.sum() / period.sum()))
    total = step + made + host
    if not total:
        return 0.0, 0.0, 1.0
    return (step + made * measured) / total, made * (not measured) / total, host / total


def _received(evidence: Evidence, inside: Floats, *, period: Floats, waited: float) -> Floats:
    """Return the time for which loops convert the batches that they receive, the same part of all
    steps, which samples of the loop's thread give."""
    share, inputs = 0.0, evidence.parts_of("input")
    if evidence.loop is not None and evidence.loop.waits == "exact":
        converting = sum(part.share for part in inputs if part.copying >= signals.MOST)
        share = max(0.0, min(converting, sum(part.share for part in inputs) - waited))
    total = float(inside.sum())
    if share < INPUT_BOUND or not total:
        return np.zeros(len(inside))
    return inside * min(1.0, share * float(period.sum()) / total)
