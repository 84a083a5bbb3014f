"""Single measurements: a window of a running loop, a step on a cached batch, a producer alone; and
the workload of the model that the last two describe."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastfeed.benchmark import tree
from fastfeed.benchmark.consumers import Consumer, TrainingLoop
from fastfeed.benchmark.workloads import open_stream
from fastfeed.errors import OptionError
from fastfeed.model.prediction import LivePoint, calibrated
from fastfeed.model.workload import (
    BATCH_PARTS,
    STEP_PARTS,
    SWITCH_S,
    Workload,
    fed_by,
    rows_of,
)
from fastfeed.probes.gpu import GpuMeter
from fastfeed.probes.lock import LATE_S, LockProbe

STEP_WARMUP, STOCK_STEPS = 40, 10
WARMUP_S = 5.0


@dataclass(frozen=True)
class Window:
    """One measured window of one setting. Times in seconds, memory in bytes, starvation 0 to 1.

    `memory_nbytes` is the memory of the trainer and its worker processes together; `cpu_cores` are
    the cores that all of them kept busy.
    """

    steps: int
    wall_s: float
    starvation: float
    wait_p50_s: float
    wait_p99_s: float
    cpu_cores: float
    memory_nbytes: int
    first_batch_s: float
    gpu_utilisation: float | None
    gpu_nbytes: int | None

    @property
    def rate(self) -> float:
        """Steps per second."""
        return self.steps / self.wall_s

    @property
    def step_s(self) -> float:
        """One step without its wait, beside the producers."""
        return self.wall_s * (1 - self.starvation) / self.steps


@dataclass(frozen=True)
class StepCost:
    """One step on a cached batch: mean seconds, and core seconds of the process and of the loop's
    thread. `times` are the seconds of every step."""

    step_s: float
    cpu_s: float = 0.0
    thread_cpu_s: float = 0.0
    times: tuple[float, ...] = ()


@dataclass(frozen=True)
class ProducerCost:
    """One batch of one producer alone: seconds of wall time, on a core, and with the interpreter
    lock held; and the mean seconds for which another thread waited for that lock meanwhile.

    `times` are the wall and the core seconds of every batch.
    """

    batch_s: float
    cpu_s: float
    gil_s: float
    gil_wait_s: float
    times: tuple[tuple[float, float], ...] = ()


def measure_loop(loop: TrainingLoop, *, seconds: float, steps: int | None = None) -> Window:
    """Measure a window of at least `seconds`, or of exactly `steps`, after warm-up; cores and
    memory are read at its ends."""
    _warm_up(loop)
    gpu = GpuMeter()
    waits: list[float] = []
    cpu, start = tree.cpu_s(), time.perf_counter()
    now = start
    while len(waits) < steps if steps else now < start + seconds:
        waits.append(loop.step())
        now = time.perf_counter()
        gpu.sample(now)
    wall_s, cpu_s = now - start, tree.cpu_s() - cpu
    return Window(
        steps=len(waits),
        wall_s=wall_s,
        starvation=min(1.0, sum(waits) / wall_s),
        wait_p50_s=float(np.percentile(waits, 50)),
        wait_p99_s=float(np.percentile(waits, 99)),
        cpu_cores=cpu_s / wall_s,
        memory_nbytes=tree.own_nbytes(),
        first_batch_s=loop.first_batch_s,
        gpu_utilisation=gpu.utilisation,
        gpu_nbytes=gpu.nbytes,
    )


def measure_step(consumer: Consumer, batch: Any, *, seconds: float) -> StepCost:
    """Measure the ceiling: steps on one cached batch, back to back."""
    with consumer.cached(batch) as step:
        for _ in range(10):
            step()
        times: list[float] = []
        cpu, thread_cpu = time.process_time(), time.thread_time()
        end = time.perf_counter() + seconds
        while len(times) < 20 or time.perf_counter() < end:
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        cpu_s = (time.process_time() - cpu) / len(times)
        thread_cpu_s = (time.thread_time() - thread_cpu) / len(times)
    if np.median(times) <= 1e-6:  # there is no step
        return StepCost(0.0)
    return StepCost(float(np.mean(times)), cpu_s, thread_cpu_s, tuple(times))


def measure_producer(source: Any, *, seconds: float) -> tuple[Any, ProducerCost]:
    """Return a first batch, and the cost of a bare loop over one producer; the interpreter lock is
    probed meanwhile."""
    stream = open_stream(source)
    batch = next(stream, None)
    if batch is None:
        raise OptionError(
            "the workload's iterator ended before its first batch: needed an endless or a long one"
        )
    clocks = [(time.perf_counter(), time.thread_time())]
    probe = LockProbe()
    probe.thread.start()
    try:
        end = clocks[0][0] + seconds
        while clocks[-1][0] < end and next(stream, None) is not None:
            clocks.append((time.perf_counter(), time.thread_time()))
    finally:
        probe.stop()
        probe.thread.join()
    close = getattr(stream, "close", None)
    if close is not None:
        close()
    times = np.maximum(np.diff(clocks, axis=0), 0.0)
    count = max(1, len(times))
    wall_s, cpu_s = max(float(times[:, 0].sum()), 1e-9), float(times[:, 1].sum())
    late = [delay_s for delay_s in probe.delays_s if delay_s > LATE_S]
    # A lock that is held now and then cannot slow the trainer more than the CPU time that the
    # producer takes.
    gil_s = min(probe.late_share * wall_s, cpu_s) / count
    gil_wait_s = sum(late) / max(1, len(probe.delays_s))
    rows = tuple((float(wall), float(cpu)) for wall, cpu in times)
    return batch, ProducerCost(wall_s / count, cpu_s / count, gil_s, gil_wait_s, rows)


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


def _warm_up(loop: TrainingLoop) -> None:
    """Go past the first steps, until the stock from before training no longer falls: it would count
    as speed."""
    start, steps = time.perf_counter(), STEP_WARMUP
    stock, falling = float("inf"), True
    while falling and time.perf_counter() < start + WARMUP_S:
        for _ in range(steps):
            loop.step()
        before, stock, steps = stock, loop.stock(), STOCK_STEPS
        falling = stock < before
