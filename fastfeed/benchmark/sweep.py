"""The sweep: what a step and a batch cost, what the model makes of it, and then every setting, in turn, repeated."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from fastfeed.benchmark.consumers import Consumer
from fastfeed.benchmark.measure import (
    ProducerCost,
    StepCost,
    Window,
    measure_loop,
    measure_producer,
    measure_step,
)
from fastfeed.benchmark.workloads import Workload
from fastfeed.errors import OptionError
from fastfeed.model import LivePoint, Prediction, Profile, predict, utilisation

PROFILE_S = 1.5
LIVE_THREADS = (1, 4)


@dataclass(frozen=True)
class Plan:
    """What to run: thread counts, records a batch, the window of one run, how often, with the idiom or without."""

    threads: tuple[int, ...]
    batch_size: int | None
    seconds: float
    steps: int | None
    repeats: int
    baseline: bool


@dataclass(frozen=True)
class Setting:
    """All windows of one thread count, ours or the hand-written idiom's, and what was predicted for ours."""

    kind: str
    threads: int
    windows: tuple[Window, ...]
    predicted: Prediction | None

    @property
    def rate(self) -> float:
        """Median steps/s."""
        return median(w.rate for w in self.windows)

    @property
    def spread(self) -> tuple[float, float]:
        """Lowest and highest steps/s."""
        rates = [w.rate for w in self.windows]
        return min(rates), max(rates)

    def middle(self, field: str) -> float:
        """The median of a window's figure."""
        return float(median(getattr(w, field) for w in self.windows))


@dataclass(frozen=True)
class Sweep:
    """Everything that was measured in one run of the benchmark."""

    workload: str
    data: str
    consumer: str
    plan: Plan
    step: StepCost
    producer: ProducerCost
    profile: Profile
    settings: tuple[Setting, ...]

    @property
    def ceiling(self) -> float:
        """Steps/s with cached batches; infinite where there is no step."""
        return 1 / self.step.step_s if self.step.step_s else float("inf")

    def ours(self) -> list[Setting]:
        """Our settings, by threads."""
        return [s for s in self.settings if s.kind == "fastfeed"]

    def possible(self, threads: int) -> float:
        """Steps/s that nothing can exceed: so many bare producer loops, or the ceiling."""
        return min(threads / self.producer.batch_s, self.ceiling)

    def au(self, setting: Setting) -> float:
        """Accelerator utilisation: time for the pure steps by total time."""
        return float(median(utilisation(w.steps, self.step.step_s, wall_s=w.wall_s) for w in setting.windows))


Progress = Callable[[str, float], None]  # what is being done, and which share (0 to 1) of all is done


def run_sweep(workload: Workload, consumer: Consumer, *, plan: Plan, progress: Progress) -> Sweep:
    """Measures everything that the plan asks for; raises what the workload or the consumer raises."""
    kinds = ["fastfeed", "hand-written"] if plan.baseline else ["fastfeed"]
    if plan.baseline and not hasattr(consumer, "handwritten"):
        raise OptionError(f"--baseline is a TensorFlow 1 idiom: needed --consumer mnist, got {consumer.name}")
    meter = _Meter(progress, 3 + len(plan.threads) * plan.repeats * len(kinds) + len(LIVE_THREADS) * consumer.burns_cpu)
    with meter.part("one producer alone") as tick:
        batch, producer = measure_producer(workload.source, seconds=PROFILE_S, tick=tick)
    with meter.part("the step on a cached batch") as tick:
        step = measure_step(consumer, batch, seconds=PROFILE_S, tick=tick)
    profile = _profile(workload, consumer, plan=plan, producer=producer, step=step, meter=meter)
    windows: dict[tuple[int, str], list[Window]] = {(n, k): [] for n in plan.threads for k in kinds}
    for repeat in range(plan.repeats):
        for (threads, kind), found in windows.items():
            with meter.part(f"{kind}, {threads} threads, run {repeat + 1} of {plan.repeats}") as tick:
                found.append(_window(workload, consumer, plan=plan, threads=threads, kind=kind, tick=tick))
    with meter.part("the step on a cached batch, again") as tick:  # machines drift: the ceiling is the better one
        step = min(step, measure_step(consumer, batch, seconds=PROFILE_S, tick=tick), key=lambda cost: cost.step_s)
    settings = tuple(
        Setting(kind, n, tuple(found), predict(profile, n) if kind == "fastfeed" else None)
        for (n, kind), found in windows.items()
    )
    return Sweep(workload.name, workload.data, consumer.name, plan, step, producer, profile, settings)


def _profile(
    workload: Workload, consumer: Consumer, *, plan: Plan, producer: ProducerCost, step: StepCost, meter: _Meter
) -> Profile:
    """Alone where the step needs no core; else with two short runs of the real loop."""
    cores = len(os.sched_getaffinity(0))
    live = []
    for threads in LIVE_THREADS if consumer.burns_cpu else ():
        with meter.part(f"a short run with {threads} threads") as tick:
            short = Plan((threads,), plan.batch_size, PROFILE_S, None, 1, False)
            found = _window(workload, consumer, plan=short, threads=threads, kind="fastfeed", tick=tick)
            live.append(LivePoint(threads, found.rate, found.cpu_cores / found.rate, found.step_s))
    costs = (producer.batch_s, producer.cpu_s, producer.gil_s, producer.gil_wait_s)
    return Profile(*costs, step.step_s, cores, tuple(live))


def _window(
    workload: Workload, consumer: Any, *, plan: Plan, threads: int, kind: str, tick: Callable[[], None]
) -> Window:
    make = consumer.loop if kind == "fastfeed" else consumer.handwritten
    with make(workload.source, threads=threads, batch_size=plan.batch_size) as loop:
        return measure_loop(loop, seconds=plan.seconds, steps=plan.steps, tick=tick)


class _Meter:
    """Turns parts that are done into a share of the whole."""

    def __init__(self, progress: Progress, parts: int) -> None:
        self._progress, self._parts, self._done = progress, parts, 0

    @contextmanager
    def part(self, text: str) -> Iterator[Callable[[], None]]:
        """Reports `text`; the value is to be called now and then, so that the bar shows life."""
        share = self._done / self._parts
        self._progress(text, share)
        yield lambda: self._progress(text, share)
        self._done += 1
        self._progress(text, self._done / self._parts)


def parse_threads(text: str) -> tuple[int, ...]:
    """Thread counts from "1,4,8"; OptionError for anything else."""
    try:
        counts: Sequence[int] = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise OptionError(f"--threads {text!r}: needed counts of 1 or more, such as 1,4,8")
    return tuple(dict.fromkeys(counts))
