"""The figures of a plan from a short profile of the user's source and step."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from fastfeed.benchmark import tree
from fastfeed.benchmark.consumers import Consumer
from fastfeed.benchmark.measure import measure_loop, measure_producer, measure_step, profile_of
from fastfeed.benchmark.sweep import LIVE_THREADS, PROFILE_S, Meter, Progress
from fastfeed.benchmark.workloads import NamedSource
from fastfeed.core.structure import leaves_of, rebuild, structure_of
from fastfeed.core.unix import ON_LINUX, usable_cores
from fastfeed.errors import OptionError
from fastfeed.model.prediction import LivePoint
from fastfeed.model.workload import INPUT_BOUND, Producers, Workload
from fastfeed.options import Shuffle
from fastfeed.plan.balance import CostLine, cost_line
from fastfeed.plan.footprint import FeedSize, MemoryCost, ring_nbytes
from fastfeed.plan.plan_figures import PROFILED, Figure
from fastfeed.producers.process.ship import pack

LIVE_PROCESSES = (1, 8)
SESSION = "mnist"  # the consumer whose queue shuffles


@dataclass(frozen=True)
class SourceProfile:
    """The workload of one trainer with the source and the step, its memory, and its figures;
    `others`: the cores that other programs took meanwhile."""

    workload: Workload
    size: FeedSize
    cost: MemoryCost
    figures: dict[str, Figure]
    others: float = 0.0


def profile_source(source: NamedSource, consumer: Consumer, *, progress: Progress) -> SourceProfile:
    """Measure one producer, the step at two batch sizes, and short runs with few and many threads
    and processes. Raise what the source or the consumer raises."""
    meter = Meter(progress, 3 + len(_live_settings()))
    start_s, before_s = time.perf_counter(), tree.others_cpu_s()
    with meter.part("one producer alone"):
        batch, producer = measure_producer(source.source, seconds=PROFILE_S)
    rows, nbytes, half = _batch(batch)
    with meter.part("the step on a cached batch"):
        step = measure_step(consumer, batch, seconds=PROFILE_S)
    trainer = float(tree.own_nbytes())
    if not step.step_s:
        raise OptionError("--train none has no step to keep busy: take --train sim:20ms, or mnist")
    points = [(float(rows), step.step_s)]
    with meter.part("the step on half a batch"):
        if half is not None:
            halved = measure_step(consumer, half, seconds=PROFILE_S)
            points.insert(0, (float(rows // 2), halved.step_s))
    pool = Shuffle().capacity * nbytes / rows if consumer.name == SESSION else 0.0
    size = FeedSize(nbytes, pool, _captured(source))
    seen, cost = _live(source, consumer, size=size, trainer=trainer, meter=meter)
    workload = profile_of(
        producer, step, cores=usable_cores(), live=seen if consumer.burns_cpu else ()
    )
    found = {
        "batch": rows,
        "sample": nbytes / rows,
        "source": producer.batch_s / rows,
        "step": tuple(points),
        "trainer": trainer,
        "captured": size.captured,
        "cores": usable_cores(),
    }
    figures = {name: Figure(value, PROFILED) for name, value in found.items() if value}
    others = (tree.others_cpu_s() - before_s) / (time.perf_counter() - start_s)
    return SourceProfile(workload, size, cost, figures, max(0.0, others))


def _live_settings() -> list[Producers]:
    processes = [Producers(1, n) for n in LIVE_PROCESSES] if ON_LINUX else []
    return [*map(Producers, LIVE_THREADS), *processes]


def _live(
    source: NamedSource, consumer: Consumer, *, size: FeedSize, trainer: float, meter: Meter
) -> tuple[list[LivePoint], MemoryCost]:
    """Return short runs of the real loop, and the memory that no formula of a feed explains."""
    seen: list[LivePoint] = []
    memory: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for producers in _live_settings():
        before = tree.own_nbytes()
        with (
            meter.part(f"a short run with {producers}"),
            consumer.loop(source.source, producers=producers, batch_size=None) as loop,
        ):
            window = measure_loop(loop, seconds=PROFILE_S)
            after = tree.own_nbytes()
        seen.append(LivePoint(producers, window.rate, window.starvation))
        known = ring_nbytes(size, producers, starved=window.starvation >= INPUT_BOUND) + size.pool
        known += size.captured * (producers.processes > 0)
        grown = max(0.0, after - before - known)
        memory[producers.processes > 0].append((float(producers.count), trainer + grown))
    lines = [_line(memory[kind], trainer) for kind in (False, True)]
    return seen, MemoryCost(trainer, *lines)


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


def _line(points: list[tuple[float, float]], trainer: float) -> CostLine:
    """Return the memory of a trainer by its producers."""
    line = cost_line(points) if points else CostLine(trainer, 0.0)
    return line if line.fixed >= trainer else CostLine(trainer, max(0.0, line.each))
