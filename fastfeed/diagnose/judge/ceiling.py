"""The speed of the loop with its input always at hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fastfeed.diagnose.diagnosis import Ceiling
from fastfeed.diagnose.evidence import FRAMEWORK, NATIVE, TRAINER, Evidence
from fastfeed.diagnose.judge import signals
from fastfeed.diagnose.judge.figures import StepTable, blocks

# steps of an experiment, without the first of each burst, which still feels the wait before it
ENOUGH = 4
# A step that computes on the cores is slower after a wait, its caches cold: 11.5 ms back to back,
# 15 to 17 in a starved loop. An estimate lies between.
COLD = 0.85
COLDEST = 0.7
LEAST = 0.05
FASTEST = 0.1  # of the step, at least, belongs to the step itself
UNSURE = 0.7


def ceiling_of(evidence: Evidence, rows: StepTable, *, inside: float = 0.0) -> Ceiling | None:
    """Return the seconds of a step with its input at hand; None without any step.

    `inside`: the share of the time that steps lose to the producers without waiting for input: to
    those that hold the interpreter lock or take the cores.
    """
    if not len(rows.period):
        return None
    found = _with_this_memory(evidence, rows, inside=inside)
    back = signals.given_back(evidence, waits=rows.share(rows.wait + rows.boundary) >= LEAST)
    if not back:
        return found
    how = f"{found.how}, without the memory that from_generator makes each give back to the system and touch again"
    return replace(found, step_s=(1 - back) * found.step_s, low_s=(1 - back) * found.low_s, how=how)


def _with_this_memory(evidence: Evidence, rows: StepTable, *, inside: float) -> Ceiling:
    """Return the same if a step's memory stays as it is."""
    free = free_steps(evidence, converted_s=float(np.median(rows.converted)))
    if len(free) >= ENOUGH:
        low, high = float(np.quantile(free, 0.25)), float(np.quantile(free, 0.75))
        # a producer that holds the lock goes on for a while after the others have stopped
        fought = (
            signals.late(evidence) and max(inside, rows.share(rows.wait + rows.boundary)) >= LEAST
        )
        middle = low if fought else float(np.median(free))
        how = f"{len(free)} steps of the running job whose batches were at hand"
        return Ceiling(middle, low, high, experiment=True, how=how)
    middle = float(np.median(rows.inside))
    if inside >= LEAST:
        pure = middle * max(FASTEST, 1 - inside / max(inside, rows.share(rows.inside)))
        how = "estimated: the steps without what they lose to the producers, which hold the lock or take the cores"
        return Ceiling(pure, UNSURE * pure, min(middle, pure / UNSURE), experiment=False, how=how)
    if (
        rows.share(rows.wait + rows.boundary) < LEAST
        or not _computes(evidence)
        or not _idles(evidence)
    ):
        spread = [float(np.median(part.inside)) for part in blocks(rows)]
        return Ceiling(
            middle,
            min(spread),
            max(spread),
            experiment=False,
            how="the time of the steps without their waits",
        )
    how = (
        "estimated from the steps without their waits; a step that computes is slower after a wait"
    )
    return Ceiling(COLD * middle, COLDEST * middle, middle, experiment=False, how=how)


def speedup_of(
    rows: StepTable, ceiling: Ceiling, *, inside: float = 0.0
) -> tuple[float, tuple[float, float]]:
    """Return how many times as fast the loop would be without any wait for input, and the range of
    that.

    What is neither wait nor step (the loop's own Python, pauses) stays, and so does what some steps
    have above the median, unless they lose it to producers: `inside` as for `ceiling_of`.
    """
    steps = max(1, len(rows.period))
    rest = float((rows.host + rows.pause).sum()) / steps
    spread = float(rows.inside.mean() - np.median(rows.inside)) if inside < LEAST else 0.0
    now = rows.seconds / steps

    def gain(step_s: float) -> float:
        return max(1.0, now / max(1e-9, rest + max(0.0, step_s + spread)))

    return gain(ceiling.step_s), (gain(ceiling.high_s), gain(ceiling.low_s))


def free_steps(evidence: Evidence, *, converted_s: float) -> list[float]:
    """Return seconds of the steps of experiments, without what they still waited, and what they
    converted."""
    steps = list(evidence.loop.steps) if evidence.loop is not None else []
    gapless = evidence.loop is not None and evidence.loop.waits != "none"
    triples = [
        (a, b, c) for a, b, c in zip(steps, steps[1:], steps[2:], strict=False) if a.free and b.free
    ]
    asleep = signals.simulated(evidence)
    found = []
    for _, step, following in triples:
        inside_s = step.end_s - step.begin_s + asleep * max(0.0, following.begin_s - step.end_s)
        found.append(max(0.0, inside_s - step.wait_s * gapless - converted_s))
    return found


def _idles(evidence: Evidence) -> bool:
    """Return True if the loop's thread leaves its core while it waits, so that its caches are cold
    afterwards."""
    made = [part for part in evidence.parts if part.kind == "input" and part.busy]
    works = sum(
        part.share * sum(part.busy.get(state, 0.0) for state in signals.WORKS) for part in made
    )
    return works < 0.5 * sum(part.share for part in made) or not made


def _computes(evidence: Evidence) -> bool:
    """Return True if a step works on the cores, and not on an accelerator, or asleep."""
    native = sum(t.cpu_s for t in evidence.tasks if t.role == FRAMEWORK)
    for task in evidence.tasks:
        if task.role == TRAINER:
            native += task.share(NATIVE) * task.wall_s
    seconds = evidence.end_s - evidence.start_s
    return seconds > 0 and native / seconds > 0.05
