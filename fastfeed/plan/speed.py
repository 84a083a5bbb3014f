"""Speed with any number of producers, by the model of a feed, and the fewest that are enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fastfeed.benchmark.summary import CANDIDATES
from fastfeed.model.bounds import LIMIT_CORES, demands, step_seconds
from fastfeed.model.prediction import FEW_STEPS, Prediction, predict
from fastfeed.model.simulate import simulate
from fastfeed.model.workload import (
    BATCH_PARTS,
    INPUT_BOUND,
    STEP_PARTS,
    Outcome,
    Producers,
    Workload,
    fed_by,
    rows_of,
)
from fastfeed.plan.balance import cost_line
from fastfeed.plan.footprint import FeedSize, Footprint, MemoryCost, footprint
from fastfeed.plan.plan_figures import PlanFigures

SHOWN = (1, 2, 4, 8)


@dataclass(frozen=True)
class PlannedSetting:
    """Producers with what they are predicted to reach and to take."""

    producers: Producers
    prediction: Prediction
    memory: Footprint


def seconds_of_step(figures: PlanFigures) -> float | None:
    """Return the seconds of a step on one accelerator, or None if neither they nor the FLOPs are
    known."""
    batch = figures.get("batch")
    if "step" in figures:
        points = figures["step"]
        if not points[0][0] or (len(points) == 1 and batch in (None, points[0][0])):
            return float(points[0][1])
        return cost_line(points).at(batch) if batch is not None else None
    if batch is not None and figures.have("flops", "peak", "efficiency"):
        return float(batch * figures["flops"] / (figures["peak"] * figures["efficiency"]))
    return None


def workload_of(figures: PlanFigures) -> Workload | None:
    """Return the workload of one trainer, or None without `source`, `batch` or a step.

    With `storage`, reading a batch takes the trainer's share of it.
    """
    step_s = seconds_of_step(figures)
    if step_s is None or not figures.have("source", "batch"):
        return None
    made_s = figures["source"] * figures["batch"]
    parts = {part: (figures.get(part) or 0.0) for part in ("lock", "native", "wait")}
    rest = 1.0 - sum(parts.values())
    parts["native" if "native" not in figures else "wait"] += max(0.0, rest)
    disk_s = 0.0
    if figures.have("storage", "stored"):
        disk_s = figures["stored"] * figures["batch"] * figures["per_machine"] / figures["storage"]
    columns = {part: made_s * part_share for part, part_share in parts.items()}
    return Workload(
        rows_of(BATCH_PARTS, disk=disk_s, **columns),
        rows_of(STEP_PARTS, accelerator=step_s),
        cores=cores_of_trainer(figures),
        disks=1.0,
    )


def producers_given(figures: PlanFigures) -> Producers | None:
    """Return the producers that the user has, or None."""
    if "threads" not in figures and "processes" not in figures:
        return None
    return Producers(int(figures.get_or("threads", 1)), int(figures.get_or("processes", 0)))


def cores_of_trainer(figures: PlanFigures) -> int:
    """Return the cores of a machine for each of its accelerators."""
    return max(1, int(figures["cores"] // figures["per_machine"]))


def with_exchange(workload: Workload, seconds: float) -> Workload:
    """Return the workload with steps that exchange gradients for so long."""
    steps = workload.steps.copy()
    steps[:, STEP_PARTS.index("accelerator")] += seconds
    return replace(workload, steps=steps)


def settings_of(workload: Workload, *, size: FeedSize, cost: MemoryCost) -> list[PlannedSetting]:
    """Return 1 to 8 threads, and as many processes, with their speed and memory."""
    every = [*(Producers(n) for n in SHOWN), *(Producers(1, n) for n in SHOWN)]
    return [setting_of(workload, producers, size=size, cost=cost) for producers in every]


def setting_of(
    workload: Workload, producers: Producers, *, size: FeedSize, cost: MemoryCost
) -> PlannedSetting:
    """Return the prediction for these producers."""
    found = predict(fed_by(workload, producers), producers)
    starved = found.starvation >= INPUT_BOUND
    return PlannedSetting(producers, found, footprint(size, producers, cost=cost, starved=starved))


def fewest(workload: Workload) -> Producers:
    """Return the fewest producers that starve the step for less than 5 % and reach 95 % of the
    best speed; threads before as many processes. If none do, return the fastest."""
    every = [Producers(n) for n in CANDIDATES] + [Producers(1, n) for n in CANDIDATES]
    found: Sequence[tuple[Producers, Outcome]] = [
        (one, simulate(fed_by(workload, one), one, steps=FEW_STEPS)) for one in every
    ]
    best = max(outcome.rate for _, outcome in found)
    fast = [(one, o) for one, o in found if o.rate >= (1 - INPUT_BOUND) * best]
    fed = [one for one, o in fast if o.starvation < INPUT_BOUND] or [one for one, _ in fast]
    return min(fed, key=lambda one: (one.count, one.processes))


def cores_needed(workload: Workload) -> float:
    """Return the cores that keep the step busy: core seconds of a batch and a step, by the seconds
    of a step (the utilization law of Denning and Buzen 1978)."""
    needed = demands(workload, Producers(1, 1))[LIMIT_CORES] * workload.cores
    return needed / step_seconds(workload)
