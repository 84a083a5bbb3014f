"""The workload of a benchmark, from a short profile of a producer and of the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fastfeed.benchmark.measure import ProducerCost, StepCost
from fastfeed.model.prediction import LivePoint, calibrated
from fastfeed.model.workload import (
    BATCH_PARTS,
    STEP_PARTS,
    SWITCH_S,
    Workload,
    fed_by,
    rows_of,
)


def profile_of(
    producer: ProducerCost, step: StepCost, *, cores: int, live: Sequence[LivePoint] = ()
) -> Workload:
    """Return the workload of one producer and a step, which explains the live runs."""
    times = np.array(producer.times or [(producer.batch_s, producer.cpu_s)])
    wall_s, cpu_s = times[:, 0], np.minimum(times[:, 1], times[:, 0])
    held = min(1.0, producer.gil_s / producer.cpu_s) if producer.cpu_s else 0.0
    batches = rows_of(
        BATCH_PARTS, wait=wall_s - cpu_s, lock=held * cpu_s, native=(1 - held) * cpu_s
    )
    step_s = np.array(step.times or [step.step_s])
    # Its own thread holds the lock, for want of anything better; the threads of a native pool not.
    lock_s = min(step.thread_cpu_s, step.step_s)
    native_s = max(0.0, step.cpu_s - lock_s)
    threads = max(1.0, native_s / max(1e-9, step.step_s - lock_s))
    shares = np.array([step.step_s - lock_s - native_s / threads, native_s, lock_s])
    off_s, native, lock = np.outer(np.maximum(shares, 0.0) / max(1e-9, step.step_s), step_s)
    steps = rows_of(STEP_PARTS, accelerator=off_s, native=native, lock=lock)
    late_s = producer.gil_wait_s * producer.batch_s / producer.gil_s if producer.gil_s else SWITCH_S
    workload = Workload(
        batches,
        steps,
        cores,
        step_threads=threads,
        turns=float(step.step_s > 0),
        turn_s=min(SWITCH_S, late_s),
    )
    runs = [(fed_by(workload, one.producers), one) for one in live]
    return replace(workload, **calibrated(workload, runs))
