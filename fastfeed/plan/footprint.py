"""Memory of a trainer and its feed, part by part, from the formulas of the ring and the buffer."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from fastfeed.core.machine import WORKER_NBYTES
from fastfeed.core.worker import batches_ahead
from fastfeed.model.workload import Producers
from fastfeed.options import FeedOptions
from fastfeed.plan.balance import CostLine
from fastfeed.producers.process.workers import share_of_worker
from fastfeed.ring.layout import slot_nbytes


@dataclass(frozen=True)
class Footprint:
    """Bytes of one trainer and its feed. A page that several processes share counts once.

    `ring`: batches made ahead, and those in the hands of the producers. `captured`: the arrays of
    the source, in the memory that worker processes share; a trainer with threads has them anyway.
    """

    trainer: float
    ring: float
    pool: float = 0.0
    captured: float = 0.0
    workers: float = 0.0

    @property
    def total(self) -> float:
        """All parts."""
        return float(sum(asdict(self).values()))


@dataclass(frozen=True)
class MemoryCost:
    """What no formula gives: the rest of a trainer and its producers, by their number.

    `threads` and `processes` have the trainer itself as their fixed part.
    """

    trainer: float
    threads: CostLine
    processes: CostLine

    @classmethod
    def assumed(cls, trainer: float) -> MemoryCost:
        """Return the cost of a trainer without measurements of its producers."""
        return cls(trainer, CostLine(trainer, 0.0), CostLine(trainer, WORKER_NBYTES))


@dataclass(frozen=True)
class FeedSize:
    """Bytes of a batch, of the shuffle pool, of the arrays that the source holds, and of `memory=`,
    which bounds the batches ahead (None: the default on this machine)."""

    batch: float
    pool: float = 0.0
    captured: float = 0.0
    memory: int | None = None


def ring_nbytes(size: FeedSize, producers: Producers, *, starved: bool = False) -> float:
    """Return the bytes of all batches between producers and training.

    Threads: those that wait, unless the step is starved, and one in each producer's hands
    (core/worker.py). Processes: the slots of all rings (ring/layout.py), which stay allocated; the
    fewest usable ones where `memory` has no room for them.
    """
    threads, processes = producers.threads, producers.processes
    options = FeedOptions(threads=threads, processes=processes, memory=size.memory)
    if not processes:
        ahead = 1 if starved else batches_ahead(threads)
        return min(ahead * size.batch, options.memory_nbytes) + threads * size.batch
    slot, share = slot_nbytes(int(size.batch)), share_of_worker(options)
    slots = share.slots(slot) if share.fits(slot) else share.min_slots
    return float(processes * slots * slot)


def footprint(
    size: FeedSize, producers: Producers, *, cost: MemoryCost, starved: bool = False
) -> Footprint:
    """Return the memory with these producers."""
    line = cost.processes if producers.processes else cost.threads
    return Footprint(
        cost.trainer,
        ring_nbytes(size, producers, starved=starved),
        size.pool,
        size.captured if producers.processes else 0.0,
        line.at(producers.processes or producers.count) - cost.trainer,
    )
