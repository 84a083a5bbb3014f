"""The speed of the loop with its input always at hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fastfeed.diagnose.diagnosis import Ceiling
from fastfeed.diagnose.evidence import Evidence
from fastfeed.diagnose.judge import signals
from fastfeed.diagnose.judge.figures import StepTable, blocks
from fastfeed.model.workload import INPUT_BOUND

# Steps of an experiment. The first of each burst does not count: it still feels the wait before it.
MIN_FREE_STEPS = 4


def ceiling_of(evidence: Evidence, table: StepTable, *, contention: float = 0.0) -> Ceiling | None:
    """Return the seconds of a step with its input at hand; None without any step.

    `contention`: the share of the time that steps lose, without waiting for input, to producers
    that hold the interpreter lock or use the cores.
    """
    if not len(table.period):
        return None
    found = _with_this_memory(evidence, table, contention=contention)
    retouched = signals.retouched_share(evidence, waits=table.waited >= INPUT_BOUND)
    if not retouched:
        return found
    left = 1 - retouched
    how = (
        f"{found.how}, without the memory that from_generator makes each step return to the system "
        "and touch again"
    )
    return replace(found, step_s=left * found.step_s, low_s=left * found.low_s, how=how)


def _with_this_memory(evidence: Evidence, table: StepTable, *, contention: float) -> Ceiling:
    """Return the ceiling of steps that go on touching returned memory."""
    free = free_steps(evidence, converted_s=float(np.median(table.converted)))
    if len(free) >= MIN_FREE_STEPS:
        low, high = float(np.quantile(free, 0.25)), float(np.quantile(free, 0.75))
        # A producer that holds the lock goes on for a while after the others have stopped.
        fought = signals.lock_contended(evidence) and max(contention, table.waited) >= INPUT_BOUND
        middle = low if fought else float(np.median(free))
        how = f"measured: {len(free)} steps of the running job had their batches at hand"
        return Ceiling(middle, low, high, experiment=True, how=how)
    middle = float(np.median(table.inside))
    medians = [float(np.median(part.inside)) for part in blocks(table)]
    how = "the time of the steps without their waits"
    return Ceiling(middle, min(medians), max(medians), experiment=False, how=how)


def free_steps(evidence: Evidence, *, converted_s: float) -> list[float]:
    """Return the seconds of the steps of experiments, without their waits and conversions."""
    steps = list(evidence.loop.steps) if evidence.loop is not None else []
    contains_wait = evidence.loop is not None and evidence.loop.waits != "none"
    triples = [
        (a, b, c) for a, b, c in zip(steps, steps[1:], steps[2:], strict=False) if a.free and b.free
    ]
    simulated = signals.simulated_share(evidence)
    found = []
    for _, step, following in triples:
        inside_s = step.end_s - step.begin_s + simulated * max(0.0, following.begin_s - step.end_s)
        found.append(max(0.0, inside_s - step.wait_s * contains_wait - converted_s))
    return found
