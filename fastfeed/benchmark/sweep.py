"""The sweep: the cost of a step and of a batch, the model's predictions, and then every setting, in
turn, repeatedly."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from fastfeed.benchmark.consumers import Consumer
from fastfeed.benchmark.measure import (
    ProducerCost,
    StepCost,
    Window,
    measure_loop,
    measure_producer,
    measure_step,
    profile_of,
)
from fastfeed.benchmark.workloads import BY_PRODUCERS, NamedSource
from fastfeed.core.machine import cores
from fastfeed.errors import OptionError
from fastfeed.model.prediction import LivePoint, Prediction, predict
from fastfeed.model.workload import Producers, Workload, fed_by, utilisation

PROFILE_S = 1.5
SEARCH_LIMIT_S = 20.0  # of producers that are chosen by the runner
LIVE_THREADS = (1, 4)
BY_DALI = "dali"  # how the names of feeds begin whose batches no producer finishes
# the present activity, and the share (0 to 1) of all that is done
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class SweepPlan:
    """Plan of a sweep: every combination of `processes` and `threads`.

    `seconds` is the window of one run. `remote`: the processes are actors of that cluster of Ray,
    of one thread each. `auto`: producers that the runner chooses are measured, too.
    """

    threads: tuple[int, ...]
    batch_size: int
    seconds: float
    steps: int | None
    repeats: int
    processes: tuple[int, ...] = (0,)
    remote: str | None = None
    auto: bool = False

    @property
    def grid(self) -> tuple[Producers, ...]:
        """The combinations, all threads of a process count together."""
        every = [self._of(threads, n) for n in self.processes for threads in self.threads]
        return tuple(dict.fromkeys(every))

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
    """All windows of one combination and one kind of feed; and the prediction, where producers make
    whole batches."""

    kind: str
    producers: Producers
    windows: tuple[Window, ...]
    predicted: Prediction | None

    @property
    def rates(self) -> list[float]:
        """Steps/s of each window."""
        return [w.rate for w in self.windows]

    @property
    def rate(self) -> float:
        """Median steps/s."""
        return median(self.rates)

    def middle(self, field: str) -> float:
        """Return the median of a window's figure."""
        return float(median(getattr(w, field) for w in self.windows))


@dataclass(frozen=True)
class AutoRun:
    """Windows of runs whose producers the runner has chosen, and the producers of each."""

    producers: tuple[Producers, ...]
    windows: tuple[Window, ...]

    @property
    def rate(self) -> float:
        """Median steps/s."""
        return median(w.rate for w in self.windows)


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
    auto: AutoRun | None = None

    @property
    def ceiling(self) -> float:
        """Steps/s with cached batches; infinite if there is no step."""
        return 1 / self.step.step_s if self.step.step_s else float("inf")

    @property
    def kinds(self) -> dict[str, list[Setting]]:
        """The settings of each kind of feed."""
        found: dict[str, list[Setting]] = {}
        for setting in self.settings:
            found.setdefault(setting.kind, []).append(setting)
        return found

    def au(self, setting: Setting) -> float:
        """Return the accelerator utilisation: time for the pure steps by total time."""
        return float(
            median(utilisation(w.steps, self.step.step_s, wall_s=w.wall_s) for w in setting.windows)
        )

    def slow_down(self, setting: Setting) -> float:
        """Return how many times slower the step itself is beside the producers; nan without a
        step."""
        return setting.middle("step_s") / self.step.step_s if self.step.step_s else float("nan")


def run_sweep(
    workload: NamedSource, consumer: Consumer, *, plan: SweepPlan, progress: Progress
) -> Sweep:
    """Measure everything in the plan. Raise what the workload or the consumer raises."""
    feeds = workload.feeds or {BY_PRODUCERS: (workload.source, {})}
    windows: dict[tuple[str, Producers], list[Window]] = {
        (kind, producers): [] for kind in feeds for producers in plan.grid
    }
    live = plan.live if consumer.burns_cpu else ()
    meter = Meter(progress, 3 + (len(windows) + plan.auto) * plan.repeats + len(live))
    with meter.part("one producer alone"):
        batch, producer = measure_producer(workload.source, seconds=PROFILE_S)
    with meter.part("the step on a cached batch"):
        step = measure_step(consumer, batch, seconds=PROFILE_S)
    points = []
    for producers in live:
        with (
            meter.part(f"a short run with {producers}"),
            consumer.loop(workload.source, producers=producers, batch_size=plan.batch_size) as loop,
        ):
            found = measure_loop(loop, seconds=PROFILE_S)
        points.append(LivePoint(producers, found.rate, found.starvation))
    profile = profile_of(producer, step, cores=cores(), live=points)
    for repeat in range(plan.repeats):
        for (kind, producers), measured in windows.items():
            source, options = feeds[kind]
            with (
                meter.part(f"{kind}, {producers}, run {repeat + 1} of {plan.repeats}"),
                consumer.loop(
                    source, producers=producers, batch_size=plan.batch_size, options=options
                ) as loop,
            ):
                measured.append(measure_loop(loop, seconds=plan.seconds, steps=plan.steps))
    auto = _auto_run(workload, consumer, plan=plan, meter=meter) if plan.auto else None
    # machines drift: the better ceiling counts
    with meter.part("the step on a cached batch, again"):
        again = measure_step(consumer, batch, seconds=PROFILE_S)
    step = min(step, again, key=lambda cost: cost.step_s)
    settings = tuple(
        Setting(
            kind,
            producers,
            tuple(measured),
            None if kind.startswith(BY_DALI) else predict(fed_by(profile, producers), producers),
        )
        for (kind, producers), measured in windows.items()
    )
    names = workload.name, workload.data, consumer.name
    return Sweep(*names, plan, step, producer, profile, settings, tuple(points), auto)


def _auto_run(
    workload: NamedSource, consumer: Consumer, *, plan: SweepPlan, meter: Meter
) -> AutoRun:
    found, measured = [], []
    for repeat in range(plan.repeats):
        with (
            meter.part(f'workers="auto", run {repeat + 1} of {plan.repeats}'),
            consumer.loop(workload.source, producers=None, batch_size=plan.batch_size) as loop,
        ):
            end_s = time.perf_counter() + SEARCH_LIMIT_S
            while time.perf_counter() < end_s:
                loop.step()
            measured.append(measure_loop(loop, seconds=plan.seconds, steps=plan.steps))
            found.append(loop.producers())
    return AutoRun(tuple(found), tuple(measured))


class Meter:
    """Turns completed `parts` into a share of the whole, and passes it to `progress`."""

    def __init__(self, progress: Progress, parts: int) -> None:
        self._progress, self._parts, self._done = progress, parts, 0

    @contextmanager
    def part(self, text: str) -> Iterator[None]:
        """Report `text`, and at the end that another part is done."""
        self._progress(text, self._done / self._parts)
        yield
        self._done += 1
        self._progress(text, self._done / self._parts)


def parse_counts(text: str, option: str, *, least: int, such_as: str) -> tuple[int, ...]:
    """Return counts from "1,4,8", each once. Raise OptionError for anything else."""
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < least:
        raise OptionError(f"{option} {text!r}: must be counts >= {least}, such as {such_as}")
    return tuple(dict.fromkeys(counts))
