"""A trainer and its feed with any number of producers: speed by the model, and memory; from figures
or from a short profile of the user's source and step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from fastfeed.benchmark import tree
from fastfeed.benchmark.consumers import Consumer
from fastfeed.benchmark.measure import measure_loop, measure_producer, measure_step, profile_of
from fastfeed.benchmark.summary import CANDIDATES
from fastfeed.benchmark.sweep import LIVE_THREADS, PROFILE_S, Meter, Progress
from fastfeed.benchmark.workloads import NamedSource
from fastfeed.core.machine import WORKER_NBYTES, cores
from fastfeed.core.structure import leaves_of, rebuild, structure_of
from fastfeed.core.unix import ON_LINUX
from fastfeed.core.worker import batches_ahead
from fastfeed.errors import OptionError
from fastfeed.model.prediction import LivePoint, Prediction, predict
from fastfeed.model.workload import (
    BATCH_PARTS,
    INPUT_BOUND,
    LIMIT_CORES,
    LIMIT_PRODUCERS,
    STEP_PARTS,
    Producers,
    Workload,
    demands,
    fed_by,
    rows_of,
    step_seconds,
)
from fastfeed.options import FeedOptions, Shuffle
from fastfeed.plan.balance import CostLine, cost_line
from fastfeed.plan.plan_figures import KNOWN, PROFILED, SHARES, Figure, PlanFigures, said
from fastfeed.producers.process.ship import pack
from fastfeed.producers.process.workers import share_of_worker
from fastfeed.ring.layout import slot_nbytes

LIVE_PROCESSES = (1, 8)
SESSION = "mnist"  # the consumer whose queue shuffles
SHOWN = (1, 2, 4, 8)
NO_COST, INTERPRETERS = CostLine(0.0, 0.0), CostLine(0.0, WORKER_NBYTES)
ENOUGH = 4  # times the producers that even batches need: uneven ones, or busy cores, need more


@dataclass(frozen=True)
class FeedMemory:
    """Bytes of a trainer and its feed: of a batch, the shuffle pool, and the arrays that the source
    holds. `threads` and `processes`: of the producers, by their number.

    `bound` is `memory=`, for the batches ahead (None: the default on this machine).
    """

    batch: float
    trainer: float
    pool: float = 0.0
    captured: float = 0.0
    bound: int | None = None
    threads: CostLine = NO_COST
    processes: CostLine = INTERPRETERS

    def ring(self, producers: Producers, *, starved: bool = False) -> float:
        """Return the bytes of all batches between producers and training.

        Threads: those that wait, unless the step is starved, and one in each producer's hands
        (core/worker.py). Processes: the slots of all rings (ring/layout.py), which stay allocated;
        the fewest usable ones where `bound` has no room for them.
        """
        threads, processes = producers.threads, producers.processes
        options = FeedOptions(threads=threads, processes=processes, memory=self.bound)
        if not processes:
            ahead = 1 if starved else batches_ahead(threads)
            return min(ahead * self.batch, options.memory_nbytes) + threads * self.batch
        slot, share = slot_nbytes(int(self.batch)), share_of_worker(options)
        slots = share.slots(slot) if share.fits(slot) else share.min_slots
        return float(processes * slots * slot)

    def parts(self, producers: Producers, *, starved: bool = False) -> dict[str, float]:
        """Return the bytes of each part. A page that several processes share counts once; a trainer
        with threads has the arrays of its source anyway."""
        line = self.processes if producers.processes else self.threads
        return {
            "trainer": self.trainer,
            "captured": self.captured * (producers.processes > 0),
            "pool": self.pool,
            "ring": self.ring(producers, starved=starved),
            "producers": line.at(producers.processes or producers.count),
        }


@dataclass(frozen=True)
class PlannedSetting:
    """Producers with what they are predicted to reach, and the bytes of each part of the memory."""

    producers: Producers
    prediction: Prediction
    memory: dict[str, float]

    @property
    def fed(self) -> bool:
        """True if the step does not starve."""
        return self.prediction.starvation < INPUT_BOUND

    @property
    def nbytes(self) -> float:
        """All parts of the memory."""
        return sum(self.memory.values())


def settings_of(
    workload: Workload, memory: FeedMemory, *, given: Producers | None = None
) -> tuple[list[PlannedSetting], PlannedSetting]:
    """Return 1 to 8 threads and as many processes, with those that are chosen; and these: the given
    producers, or the fewest that are enough. All lines come from the same predictions."""

    @cache
    def setting(producers: Producers) -> PlannedSetting:
        found = predict(fed_by(workload, producers), producers)
        starved = found.starvation >= INPUT_BOUND
        return PlannedSetting(producers, found, memory.parts(producers, starved=starved))

    made_s = demands(workload, Producers(1))[LIMIT_PRODUCERS]
    most = ENOUGH * max(1.0, made_s / step_seconds(workload))
    every = [p for n in CANDIDATES if n <= most for p in (Producers(n), Producers(1, n))]
    pace = (1 - INPUT_BOUND) / step_seconds(workload)
    chosen = setting(given) if given else fewest(map(setting, every), pace)
    shown = [*map(Producers, SHOWN), *(Producers(1, n) for n in SHOWN)]
    shown = sorted({*shown, chosen.producers}, key=lambda p: (p.processes, p.threads))
    return [setting(producers) for producers in shown], chosen


def fewest(settings: Iterator[PlannedSetting], pace: float) -> PlannedSetting:
    """Return the first setting that feeds the step at this pace.

    If producers slow the step down, so that none does: the first whose step does not starve, of
    those that the model cannot tell from the fastest. If all starve: of all of them.
    """
    seen: list[PlannedSetting] = []
    for one in settings:
        if one.fed and one.prediction.rate >= pace:
            return one
        seen.append(one)
    seen = [one for one in seen if one.fed] or seen
    best = max(one.prediction.rate for one in seen)
    return next(one for one in seen if one.prediction.high >= best)


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
    parts = {part: figures.get_or(part, 0.0) for part in SHARES}
    parts["native" if "native" not in figures else "wait"] += max(0.0, 1 - sum(parts.values()))
    disk_s = 0.0
    if figures.have("storage", "stored"):
        disk_s = figures["stored"] * figures["batch"] * figures["per_machine"] / figures["storage"]
    return Workload(
        rows_of(BATCH_PARTS, disk=disk_s, **{part: made_s * n for part, n in parts.items()}),
        rows_of(STEP_PARTS, accelerator=step_s),
        cores=cores_of_trainer(figures),
        disks=1.0,
    )


def cores_of_trainer(figures: PlanFigures) -> int:
    """Return the cores of a machine for each of its accelerators."""
    return max(1, int(figures["cores"] // figures["per_machine"]))


def cores_needed(workload: Workload) -> float:
    """Return the cores that keep the step busy: core seconds of a batch and a step, by the seconds
    of a step (the utilization law of Denning and Buzen 1978)."""
    needed = demands(workload, Producers(1, 1))[LIMIT_CORES] * workload.cores
    return needed / step_seconds(workload)


@dataclass(frozen=True)
class SourceProfile:
    """The workload of one trainer with the source and the step, its memory, and its figures;
    `others`: the cores that other programs took meanwhile."""

    workload: Workload
    memory: FeedMemory
    figures: dict[str, Figure]
    others: float = 0.0


def profile_source(source: NamedSource, consumer: Consumer, *, progress: Progress) -> SourceProfile:
    """Measure one producer, the step at two batch sizes, and short runs with few and many threads
    and processes. Raise what the source or the consumer raises."""
    live = [*map(Producers, LIVE_THREADS), *(Producers(1, n) for n in LIVE_PROCESSES if ON_LINUX)]
    meter = Meter(progress, 3 + len(live))
    start_s, before_s = time.perf_counter(), tree.others_cpu_s()
    with meter.part("one producer alone"):
        batch, producer = measure_producer(source.source, seconds=PROFILE_S)
    rows, nbytes, half = _batch(batch)
    with meter.part("the step on a cached batch"):
        step = measure_step(consumer, batch, seconds=PROFILE_S)
    if not step.step_s:
        raise OptionError("--train none has no step to keep busy: take --train sim:20ms, or mnist")
    trainer, points = float(tree.own_nbytes()), [(float(rows), step.step_s)]
    with meter.part("the step on half a batch"):
        if half is not None:
            halved = measure_step(consumer, half, seconds=PROFILE_S)
            points.insert(0, (float(rows // 2), halved.step_s))
    pool = Shuffle().capacity * nbytes / rows if consumer.name == SESSION else 0.0
    memory = FeedMemory(nbytes, trainer, pool=pool, captured=_captured(source))
    seen, memory = _short_runs(source, consumer, live=live, memory=memory, meter=meter)
    workload = profile_of(producer, step, cores=cores(), live=seen if consumer.burns_cpu else ())
    measured = {
        "batch": rows,
        "sample": nbytes / rows,
        "source": producer.batch_s / rows,
        "step": tuple(points),
        "trainer": trainer,
        "captured": memory.captured,
        "cores": workload.cores,
    }
    figures = {
        name: Figure(value, PROFILED, (f"{name}={said(value, KNOWN[name][0])} (measured)",))
        for name, value in measured.items()
        if value
    }
    others = (tree.others_cpu_s() - before_s) / (time.perf_counter() - start_s)
    return SourceProfile(workload, memory, figures, max(0.0, others))


def _short_runs(
    source: NamedSource,
    consumer: Consumer,
    *,
    live: list[Producers],
    memory: FeedMemory,
    meter: Meter,
) -> tuple[list[LivePoint], FeedMemory]:
    """Return short runs of the real loop, and the memory with that of the producers."""
    seen: list[LivePoint] = []
    threads: list[tuple[float, float]] = []
    processes: list[tuple[float, float]] = []
    for one in live:
        before = tree.own_nbytes()
        with (
            meter.part(f"a short run with {one}"),
            consumer.loop(source.source, producers=one, batch_size=None) as loop,
        ):
            window = measure_loop(loop, seconds=PROFILE_S)
        seen.append(LivePoint(one, window.rate, window.starvation))
        parts = memory.parts(one, starved=window.starvation >= INPUT_BOUND)
        known = parts["captured"] + parts["pool"] + parts["ring"]
        more = max(0.0, window.memory_nbytes - before - known)
        (processes if one.processes else threads).append((float(one.count), more))
    memory = replace(memory, threads=cost_line(threads))
    return seen, replace(memory, processes=cost_line(processes)) if processes else memory


def _batch(batch: Any) -> tuple[int, float, Any]:
    """Return the records of a batch, its bytes, and half of it (None for a single record)."""
    structure = structure_of(batch)
    leaves = leaves_of(structure, batch) or []
    if not leaves or not all(getattr(leaf, "ndim", 0) for leaf in leaves):
        raise OptionError(
            "the workload's batches must be arrays with one leading dimension, got "
            f"{type(batch).__name__}"
        )
    rows = len(leaves[0])
    half = rebuild(structure, [leaf[: rows // 2] for leaf in leaves]) if rows > 1 else None
    return rows, float(sum(leaf.nbytes for leaf in leaves)), half


def _captured(source: NamedSource) -> float:
    """Return the bytes that worker processes get of the source."""
    if not ON_LINUX:
        return 0.0
    shipment = pack(source.source, what="the workload")
    shipment.close()
    return float(shipment.nbytes)
