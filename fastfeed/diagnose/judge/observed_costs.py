"""The observed feed as the workload of a simulation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fastfeed.diagnose.diagnosis import MAX_RATE_ERROR, Ceiling
from fastfeed.diagnose.evidence import (
    DISK,
    FRAMEWORK,
    LOCK_PYTHON,
    PRODUCER,
    PYTHON,
    RUNNABLE,
    TRAINER,
    Evidence,
)
from fastfeed.diagnose.judge import signals
from fastfeed.diagnose.judge.figures import StepTable
from fastfeed.diagnose.judge.observed_feed import FeedModel
from fastfeed.diagnose.judge.producer_profile import ProducerProfile
from fastfeed.model.bounds import (
    LIMIT_CORES,
    LIMIT_DISK,
    LIMIT_LOCK,
    LIMIT_PRODUCERS,
    demands,
    slowness,
)
from fastfeed.model.simulate import crowding
from fastfeed.model.workload import (
    BATCH_PARTS,
    INPUT_BOUND,
    STEP_PARTS,
    Floats,
    Producers,
    Workload,
    rows_of,
)


@dataclass(frozen=True)
class Observed:
    """What is known of a feed.

    `contention`: see `ceiling_of`. `tail`: a few slow batches stall the step, because batches leave
    in order.
    """

    evidence: Evidence
    table: StepTable
    ceiling: Ceiling
    producers: ProducerProfile | None
    contention: float = 0.0
    tail: bool = False

    @property
    def counted(self) -> float:
        """Share of the sampled time in steps that count; the rest are experiments."""
        trainer = self.evidence.trainer
        sampled_s = trainer.wall_s if trainer is not None else self.evidence.seconds
        return self.table.seconds / max(1e-9, sampled_s)

    @property
    def retouched(self) -> float:
        """Share of a step in which it touches memory again that from_generator had it return."""
        return signals.retouched_share(self.evidence, waits=self.table.waited >= INPUT_BOUND)


def feed_of(observed: Observed) -> FeedModel:
    """Return the feed with costs and producers as observed."""
    evidence, table, producers = observed.evidence, observed.table, observed.producers
    if producers is not None and producers.kind == "native" and table.starvation < INPUT_BOUND:
        producers = None  # what the framework's threads compute is the step
        observed = replace(observed, producers=None)
    count = producers.count if producers is not None and producers.kind != "trainer" else 0
    processes = producers is not None and producers.kind == "processes"
    in_turn = evidence.loop is not None and evidence.loop.kind == "torch"
    depth = _depth(evidence, count, in_turn=in_turn)
    starts = [mark.start_s for mark in evidence.marks if mark.kind == "epoch"]
    epochs = sum(table.begin[0] < start_s <= table.begin[-1] for start_s in starts)
    gaps_s = float(table.boundary.sum())
    steps, threads = _steps(observed)
    batches = _batches(observed)
    workload = Workload(
        _with_tail(batches, table, depth=depth) if observed.tail else batches,
        steps,
        max(1, evidence.machine.cores),
        depth=depth,
        ordered=observed.tail or in_turn,
        step_threads=threads,
        epoch_batches=len(table.period) // (epochs + 1) if gaps_s else 0,
        epoch_start_s=gaps_s / max(1, epochs),
    )
    made_by = Producers(1, count) if processes else Producers(count)
    feed = FeedModel(workload, made_by, observed.retouched, tail=observed.tail)
    feed = _alone(feed, observed)
    # Nothing is made between epochs.
    return _reconciled(feed, len(table.period) / max(1e-9, table.seconds - gaps_s))


def _depth(evidence: Evidence, count: int, *, in_turn: bool) -> int:
    """Return the batches that are made ahead, beside those in the producers' hands."""
    buffer = evidence.loop.buffer if evidence.loop is not None else None
    if buffer is None:
        return 2 * count
    return max(0, buffer - count * in_turn)


def _steps(observed: Observed) -> tuple[Floats, float]:
    """Return rows of steps with their input at hand, and the threads that compute one."""
    evidence, table = observed.evidence, observed.table
    # Slow steps stay slow with any input, unless they lose their time to producers.
    median_s = float(np.median(table.inside))
    lost = observed.contention >= INPUT_BOUND
    inside = np.full(len(table.inside), median_s) if lost else table.inside
    pure = observed.ceiling.step_s / max(1e-9, median_s * (1 - observed.retouched))
    inside = inside * min(1.0, pure)
    mean_s, host_s = max(1e-9, float(inside.mean())), float(table.host.mean())
    python_s, cpu_s = _work_of_step(observed)
    lock_s = min(mean_s, max(0.0, python_s - host_s))
    native_s = max(0.0, cpu_s - lock_s - host_s)
    threads = max(1.0, min(native_s / max(1e-9, mean_s - lock_s), evidence.machine.cores))
    native_s = min(native_s, threads * (mean_s - lock_s))
    shares = np.array([mean_s - lock_s - native_s / threads, native_s, lock_s]) / mean_s
    accelerator, native, lock = np.outer(np.maximum(shares, 0.0), inside)
    lines = evidence.parts_of("host")
    share = sum(part.share for part in lines)
    held = sum(part.share_in(PYTHON) for part in lines) / share if share else 1.0
    costs = {"accelerator": accelerator + (1 - held) * table.host, "native": native, "lock": lock}
    return rows_of(STEP_PARTS, **costs, host=held * table.host, pause=table.pause), threads


def _work_of_step(observed: Observed) -> tuple[float, float]:
    """Return seconds of bytecode and of CPU for a step, without batches made on its thread."""
    evidence, producers, steps = observed.evidence, observed.producers, len(observed.table.period)
    trainer, kind = evidence.trainer, producers.kind if producers is not None else ""
    roles = (TRAINER,) if kind == "native" else (TRAINER, FRAMEWORK)
    cpu_s = sum(task.cpu_s for task in evidence.tasks if task.role in roles)
    if producers is not None and kind == "trainer":
        cpu_s -= producers.cpu_s
    python = trainer.share(PYTHON) if trainer is not None else 0.0
    python -= sum(part.share_in(PYTHON) for part in evidence.parts_of("input"))
    return python * observed.table.seconds / steps, max(0.0, cpu_s) * observed.counted / steps


def _batches(observed: Observed) -> Floats:
    """Return rows of batches: what each costs its producer, and the training thread."""
    evidence, table, producers = observed.evidence, observed.table, observed.producers
    steps, waited_s = len(table.period), float(table.wait.mean())
    if producers is None:
        return rows_of(BATCH_PARTS, wait=table.wait, handover=float(table.converted.mean()))
    working = producers.python + producers.native
    alone = max(1e-9, 1 - producers.share(LOCK_PYTHON, RUNNABLE))
    shape = np.ones(1)
    if producers.kind == "trainer":
        batch_s, shape = waited_s, table.wait / max(1e-9, waited_s)
    else:
        batch_s = producers.count * producers.active * alone * table.seconds / steps
    cpu_s = producers.cpu_s * observed.counted / steps if producers.cpu_s else batch_s * working
    # The CPU time of threads is counted, all else is sampled; a process may have pools of its own.
    # Of the framework's threads only the CPU time is known: several may seem to work as one.
    if producers.kind in ("threads", "native"):
        batch_s = max(batch_s, cpu_s)
    cpu_s = min(batch_s, cpu_s)
    lock_s = cpu_s * producers.python / working if working else 0.0
    off_s = batch_s - cpu_s
    if signals.serialised(evidence, producers):  # the rest is waiting for the lock
        off_s, lock_s = 0.0, cpu_s
    off = producers.waiting + producers.share(DISK)
    disk_s = off_s * producers.share(DISK) / off if off else 0.0
    taken_s = signals.handover_share(evidence, producers) * waited_s
    costs = {
        "wait": max(0.0, off_s - disk_s),
        "disk": disk_s,
        "lock": lock_s,
        "native": max(0.0, cpu_s - lock_s),
    }
    scaled = {part: seconds * shape for part, seconds in costs.items()}
    return rows_of(BATCH_PARTS, **scaled, handover=float(table.converted.mean()) + taken_s)


def _with_tail(batches: Floats, table: StepTable, *, depth: int) -> Floats:
    """Return batches of which a few are slow: the step uses up the buffer, and then waits."""
    usual_s, step_s = float(np.median(table.wait)), float(np.median(table.inside))
    late_s = np.where(table.wait > 2 * usual_s, table.wait + depth * step_s, 0.0)
    slow = rows_of(BATCH_PARTS, wait=late_s)
    found: Floats = np.maximum(batches - slow.mean(axis=0), 0.0) + slow
    return found


def _alone(feed: FeedModel, observed: Observed) -> FeedModel:
    """Return the feed with what batches cost alone: they were measured beside other work."""
    evidence, producers = observed.evidence, observed.producers
    machine, workload = evidence.machine, feed.workload
    native = 1 / slowness(workload, machine.own_cpu)
    threads = [task.threads - 1 for task in evidence.tasks_of(PRODUCER)]
    pool = max([1, *evidence.pools.values(), *threads])
    if producers is not None and pool > 1 and signals.oversubscribed(evidence, producers):
        native /= crowding(machine.runnable / workload.cores)
        feed = feed.with_(pool=float(pool))
    return feed.batch(native=native)


def _reconciled(feed: FeedModel, rate: float) -> FeedModel:
    """Return the feed with costs that allow the observed steps/s.

    No resource was busy for more than all of the time: what counters and samples say beyond that is
    their error.
    """
    for resource, parts in (
        (LIMIT_LOCK, ("lock",)),
        (LIMIT_CORES, ("lock", "native")),
        (LIMIT_PRODUCERS, BATCH_PARTS),
        (LIMIT_DISK, ("disk",)),
    ):
        use = rate * demands(feed.workload, feed.producers)[resource]
        if use > 1:
            feed = feed.batch(**dict.fromkeys(parts, 1 / use))
        if use > 1 + MAX_RATE_ERROR:
            feed = replace(feed, overcounted=(*feed.overcounted, resource))
    return feed
