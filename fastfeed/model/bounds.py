"""Bounds of a feed's speed from the demand for each resource.

The operational laws of Denning and Buzen (1978): no resource serves more than its time allows, and
N producers make at most N batches in the time of one.
"""

from __future__ import annotations

from collections.abc import Mapping

from fastfeed.model.workload import Producers, Workload

LIMIT_STEP, LIMIT_CORES, LIMIT_LOCK, LIMIT_DISK, LIMIT_PRODUCERS = (
    "the step",
    "the cores",
    "the interpreter lock",
    "the disk",
    "the producers",
)


def demands(workload: Workload, producers: Producers) -> dict[str, float]:
    """Return the seconds of each resource that one batch and one step need, by its capacity."""
    batch = {part: float(workload.batch(part).mean()) for part in ("wait", "disk", "lock")}
    native_s, handover_s = (float(workload.batch(p).mean()) for p in ("native", "handover"))
    step_s = step_seconds(workload) + handover_s
    python_s = float((workload.step("lock") + workload.step("host")).mean())
    made_s = sum(batch.values()) + native_s / min(workload.pool, workload.cores)
    cpu_s = float(workload.step("native").mean()) / slowness(workload, workload.step_threads)
    if producers.count == 0:
        step_s += made_s
    found = {
        LIMIT_PRODUCERS: made_s / producers.count if producers.count else 0.0,
        LIMIT_STEP: step_s,
        LIMIT_CORES: (batch["lock"] + native_s + cpu_s + python_s + handover_s) / workload.cores,
        LIMIT_DISK: batch["disk"] / workload.disks,
    }
    if producers.processes:
        found[LIMIT_LOCK] = batch["lock"] / producers.processes
    else:
        found[LIMIT_LOCK] = batch["lock"] + python_s + handover_s
    return found


def bounds(workload: Workload, producers: Producers) -> Mapping[str, float]:
    """Return the steps/s that each resource allows at most; infinite if it is not needed."""
    needed = demands(workload, producers)
    return {name: 1 / one if one > 0 else float("inf") for name, one in needed.items()}


def step_seconds(workload: Workload) -> float:
    """Return the mean seconds of a step alone, with the host's work and pauses beside it."""
    native = float(workload.step("native").mean()) / width(workload, workload.step_threads)
    rest = sum(float(workload.step(p).mean()) for p in ("accelerator", "lock", "host", "pause"))
    return native + rest


def width(workload: Workload, threads: float) -> float:
    """Return how many cores that many threads of one pool use."""
    return max(1.0, min(threads, workload.cores))


def slowness(workload: Workload, runnable: float) -> float:
    """Return how many times longer work takes on a core while so many threads want cores."""
    others = min(runnable, workload.cores) - 1
    if workload.cores <= 1 or others <= 0:
        return 1.0
    return 1 + workload.contention * others / (workload.cores - 1)
