"""The sweep: the cost of a step and of a batch, the model's predictions, and then every setting, in
turn, repeatedly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from fastfeed.benchmark.measure import (
    ProducerCost,
    StepCost,
    Window,
    measure_loop,
    measure_producer,
    measure_step,
)
from fastfeed.benchmark.profile import profile_of
from fastfeed.benchmark.training_loop import Consumer
from fastfeed.benchmark.workloads import NamedSource
from fastfeed.core.unix import usable_cores
from fastfeed.errors import OptionError
from fastfeed.model.prediction import LivePoint, Prediction, predict
from fastfeed.model.workload import Producers, Workload, fed_by, utilisation

PROFILE_S = 1.5
LIVE_THREADS = (1, 4)
BY_FASTFEED, BY_HAND = "fastfeed", "hand-written"


@dataclass(frozen=True)
class SweepPlan:
    """Plan of a sweep: every combination of `processes` and `threads`.

    `seconds` is the window of one run. `baseline`: the idiom is measured, too, for threads of the
    trainer. `remote`: the processes are actors of that cluster of Ray, of one thread each.
    """

    threads: tuple[int, ...]
    batch_size: int | None
    seconds: float
    steps: int | None
    repeats: int
    baseline: bool
    processes: tuple[int, ...] = (0,)
    remote: str | None = None

    @property
    def grid(self) -> tuple[Producers, ...]:
        """The combinations, all threads of a process count together."""
        every = [self._of(threads, n) for n in self.processes for threads in self.threads]
        return tuple(dict.fromkeys(every))

    @property
    def runs(self) -> tuple[tuple[Producers, str], ...]:
        """Everything that is measured in turn: producers, and the kind of runner."""
        kinds = [(producers, kind) for producers in self.grid for kind in (BY_FASTFEED, BY_HAND)]
        return tuple(
            (p, kind)
            for p, kind in kinds
            if kind == BY_FASTFEED or (self.baseline and not p.processes)
        )

    @property
    def live(self) -> tuple[Producers, ...]:
        """The short runs from which a step that burns CPU is predicted: two for threads in the
        trainer, and the fewest and the most processes."""
        worker_counts = [n for n in self.processes if n]
        ends = sorted({min(worker_counts), max(worker_counts)}) if worker_counts else []
        in_trainer = LIVE_THREADS if 0 in self.processes else ()
        return (*map(Producers, in_trainer), *(self._of(min(self.threads), n) for n in ends))

    def _of(self, threads: int, processes: int) -> Producers:
        if processes and self.remote is not None:
            return Producers(1, processes, self.remote)
        return Producers(threads, processes)


@dataclass(frozen=True)
class Setting:
    """All windows of one combination, of fastfeed or of the idiom, and the prediction for
    fastfeed."""

    kind: str
    producers: Producers
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
        """Return the median of a window's figure."""
        return float(median(getattr(w, field) for w in self.windows))


@dataclass(frozen=True)
class Sweep:
    """All measurements of one run of the benchmark."""

    workload: str
    data: str
    consumer: str
    plan: SweepPlan
    step: StepCost
    producer: ProducerCost
    profile: Workload
    settings: tuple[Setting, ...]
    live: tuple[LivePoint, ...] = ()

    @property
    def ceiling(self) -> float:
        """Steps/s with cached batches; infinite if there is no step."""
        return 1 / self.step.step_s if self.step.step_s else float("inf")

    def ours(self) -> list[Setting]:
        """Return fastfeed's settings, in the order of the plan."""
        return [s for s in self.settings if s.kind == BY_FASTFEED]

    def possible(self, producers: Producers) -> float:
        """Return steps/s that nothing can exceed: bare producer loops, or the ceiling."""
        return min(producers.count / self.producer.batch_s, self.ceiling)

    def au(self, setting: Setting) -> float:
        """Return the accelerator utilisation: time for the pure steps by total time."""
        return float(
            median(utilisation(w.steps, self.step.step_s, wall_s=w.wall_s) for w in setting.windows)
        )


# the present activity, and the share (0 to 1) of all that is done
Progress = Callable[[str, float], None]


def run_sweep(
    workload: NamedSource, consumer: Consumer, *, plan: SweepPlan, progress: Progress
) -> Sweep:
    """Measure everything in the plan. Raise what the workload or the consumer raises."""
    if plan.baseline:
        _check_baseline(plan, consumer)
    live = plan.live if consumer.burns_cpu else ()
    meter = Meter(progress, 3 + len(plan.runs) * plan.repeats + len(live))
    with meter.part("one producer alone") as tick:
        batch, producer = measure_producer(workload.source, seconds=PROFILE_S, tick=tick)
    with meter.part("the step on a cached batch") as tick:
        step = measure_step(consumer, batch, seconds=PROFILE_S, tick=tick)
    run = _Run(workload, consumer, plan, meter)
    points = [run.short(producers) for producers in live]
    profile = profile_of(producer, step, cores=usable_cores(), live=points)
    windows: dict[tuple[Producers, str], list[Window]] = {key: [] for key in plan.runs}
    for repeat in range(plan.repeats):
        for (producers, kind), found in windows.items():
            text = f"{kind}, {producers}, run {repeat + 1} of {plan.repeats}"
            found.append(run.window(producers, kind, text=text))
    # machines drift: the better ceiling counts
    with meter.part("the step on a cached batch, again") as tick:
        step = min(
            step,
            measure_step(consumer, batch, seconds=PROFILE_S, tick=tick),
            key=lambda cost: cost.step_s,
        )
    settings = tuple(
        Setting(
            kind,
            producers,
            tuple(found),
            predict(fed_by(profile, producers), producers) if kind == BY_FASTFEED else None,
        )
        for (producers, kind), found in windows.items()
    )
    names = workload.name, workload.data, consumer.name
    return Sweep(*names, plan, step, producer, profile, settings, tuple(points))


def _check_baseline(plan: SweepPlan, consumer: Consumer) -> None:
    if not hasattr(consumer, "handwritten"):
        raise OptionError(
            f"--baseline is a TensorFlow 1 idiom: needed --consumer mnist, got {consumer.name}"
        )
    if 0 not in plan.processes:
        raise OptionError(
            "--baseline has threads in the trainer only: needed --processes with 0 among the counts"
        )


@dataclass(frozen=True)
class _Run:
    """Runs of the real loop, each a part of the whole."""

    workload: NamedSource
    consumer: Any
    plan: SweepPlan
    meter: Meter

    def short(self, producers: Producers) -> LivePoint:
        """Return the result of a short run, for the model."""
        brief = replace(self, plan=replace(self.plan, seconds=PROFILE_S, steps=None))
        found = brief.window(producers, BY_FASTFEED, text=f"a short run with {producers}")
        return LivePoint(producers, found.rate, found.starvation)

    def window(self, producers: Producers, kind: str, *, text: str) -> Window:
        """Return one window of fastfeed, or of the idiom."""
        make = self.consumer.loop if kind == BY_FASTFEED else self.consumer.handwritten
        batch_size = self.plan.batch_size
        with (
            self.meter.part(text) as tick,
            make(self.workload.source, producers=producers, batch_size=batch_size) as loop,
        ):
            return measure_loop(loop, seconds=self.plan.seconds, steps=self.plan.steps, tick=tick)


class Meter:
    """Turns completed `parts` into a share of the whole, and passes it to `progress`."""

    def __init__(self, progress: Progress, parts: int) -> None:
        self._progress, self._parts, self._done = progress, parts, 0

    @contextmanager
    def part(self, text: str) -> Iterator[Callable[[], None]]:
        """Report `text`; yield a function to be called from time to time, so that the bar moves."""
        share = self._done / self._parts
        self._progress(text, share)
        yield lambda: self._progress(text, share)
        self._done += 1
        self._progress(text, self._done / self._parts)


def parse_counts(text: str, option: str, *, least: int, such_as: str) -> tuple[int, ...]:
    """Return counts from "1,4,8", each once. Raise OptionError for anything else."""
    try:
        counts: Sequence[int] = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < least:
        raise OptionError(f"{option} {text!r}: must be counts >= {least}, such as {such_as}")
    return tuple(dict.fromkeys(counts))
