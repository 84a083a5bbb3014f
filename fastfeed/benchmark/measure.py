"""Single measurements: a window of a running loop, a step on a cached batch, a producer alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

from fastfeed.benchmark import tree
from fastfeed.benchmark.training_loop import Consumer, TrainingLoop
from fastfeed.benchmark.workloads import open_stream
from fastfeed.errors import OptionError
from fastfeed.probes.gpu import GpuMeter

# period of the GIL probe; a lag of more than LAG_S means that the lock was held
PROBE_S = 0.005
LAG_S = 0.001
STEP_WARMUP, STOCK_STEPS = 40, 10
WARMUP_S = 5.0


@dataclass(frozen=True)
class Window:
    """One measured window of one setting. Times in seconds, memory in bytes, starvation 0 to 1
    (nan: unknown).

    `rss_nbytes` is the resident memory of the trainer alone, `memory_nbytes` that of it and its
    worker processes together; `cpu_cores` are the cores that all of them kept busy.
    """

    steps: int
    wall_s: float
    starvation: float
    wait_p50_s: float
    wait_p99_s: float
    cpu_cores: float
    rss_nbytes: int
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
    """One step on a cached batch: mean seconds with the spread (10th, 90th percentile), and core
    seconds, of the process and of the loop's thread. `times` are the seconds of every step."""

    step_s: float
    low_s: float
    high_s: float
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


def measure_loop(
    loop: TrainingLoop, *, seconds: float, steps: int | None = None, tick: Callable[[], None]
) -> Window:
    """Measure a window of at least `seconds`, or of exactly `steps`, after warm-up; cores and
    memory are read at its ends."""
    _warm_up(loop, tick)
    gpu = GpuMeter()
    waits: list[float] = []
    cpu, start = tree.cpu_s(), time.perf_counter()
    now = start
    while len(waits) < steps if steps else now < start + seconds:
        waits.append(loop.step())
        now = time.perf_counter()
        gpu.sample(now)
        tick()
    wall_s, cpu_s = now - start, tree.cpu_s() - cpu
    return Window(
        steps=len(waits),
        wall_s=wall_s,
        # unlike min(), it keeps nan: unknown
        starvation=float(np.minimum(1.0, np.sum(waits) / wall_s)),
        wait_p50_s=float(np.percentile(waits, 50)),
        wait_p99_s=float(np.percentile(waits, 99)),
        cpu_cores=cpu_s / wall_s,
        rss_nbytes=psutil.Process().memory_info().rss,
        memory_nbytes=tree.memory_nbytes(),
        first_batch_s=loop.first_batch_s,
        gpu_utilisation=gpu.utilisation,
        gpu_nbytes=gpu.nbytes,
    )


def measure_step(
    consumer: Consumer, batch: Any, *, seconds: float, tick: Callable[[], None]
) -> StepCost:
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
            tick()
        cpu_s = (time.process_time() - cpu) / len(times)
        thread_cpu_s = (time.thread_time() - thread_cpu) / len(times)
    low, middle, high = np.percentile(times, (10, 50, 90))
    # back to back, steps/s follows from the mean; the percentiles are its spread
    step_s = float(np.mean(times)) if middle > 1e-6 else 0.0
    if not step_s:
        return StepCost(0.0, float(low), float(high))
    return StepCost(step_s, float(low), float(high), cpu_s, thread_cpu_s, tuple(times))


def measure_producer(
    source: Any, *, seconds: float, tick: Callable[[], None]
) -> tuple[Any, ProducerCost]:
    """Return a first batch, and the cost of a bare loop over one producer; the interpreter lock is
    probed meanwhile."""
    stream = open_stream(source)
    batch = next(stream, None)
    if batch is None:
        raise OptionError(
            "the workload's iterator ended before its first batch: needed an endless or a long one"
        )
    clocks = [(time.perf_counter(), time.thread_time())]
    with _gil_probe() as lags:
        end = clocks[0][0] + seconds
        while clocks[-1][0] < end and next(stream, None) is not None:
            clocks.append((time.perf_counter(), time.thread_time()))
            tick()
    close = getattr(stream, "close", None)
    if close is not None:
        close()
    times = np.maximum(np.diff(clocks, axis=0), 0.0)
    count = max(1, len(times))
    wall_s, cpu_s = max(float(times[:, 0].sum()), 1e-9), float(times[:, 1].sum())
    late = np.array(lags)[np.array(lags) > LAG_S] if lags else np.zeros(0)
    held = len(late) / max(1, len(lags))
    # A lock that is held now and then cannot slow the trainer more than the CPU time that the
    # producer takes.
    gil_s = min(held * wall_s, cpu_s) / count
    gil_wait_s = float(late.sum()) / max(1, len(lags))
    rows = tuple((float(wall), float(cpu)) for wall, cpu in times)
    return batch, ProducerCost(wall_s / count, cpu_s / count, gil_s, gil_wait_s, rows)


def _warm_up(loop: TrainingLoop, tick: Callable[[], None]) -> None:
    """Go past the first steps, until the stock from before training no longer falls: it would count
    as speed."""
    start, steps = time.perf_counter(), STEP_WARMUP
    stock, falling = float("inf"), True
    while falling and time.perf_counter() < start + WARMUP_S:
        for _ in range(steps):
            loop.step()
            tick()
        before, stock, steps = stock, loop.stock(), STOCK_STEPS
        falling = stock < before


@contextmanager
def _gil_probe() -> Iterator[list[float]]:
    """Yield the delays of probes for the interpreter lock, in seconds."""
    lags: list[float] = []
    over = threading.Event()

    def probe() -> None:
        while not over.is_set():
            start = time.perf_counter()
            time.sleep(PROBE_S)
            lags.append(time.perf_counter() - start - PROBE_S)

    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    try:
        yield lags
    finally:
        over.set()
        thread.join()
