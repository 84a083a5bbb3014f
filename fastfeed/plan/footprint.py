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
    """Bytes of a batch, of the shuffle pool and of the arrays that the source holds."""

    batch: float
    pool: float = 0.0
    captured: float = 0.0


def ring_nbytes(batch_nbytes: float, producers: Producers, *, starved: bool = False) -> float:
    """Return the bytes of all batches between producers and training.

    Threads: those that wait, unless the step is starved, and one in each producer's hands
    (core/worker.py). Processes: the slots of all rings (ring/layout.py), which stay allocated.
    """
    options = FeedOptions(threads=producers.threads, processes=producers.processes)
    if not producers.processes:
        ahead = 1 if starved else batches_ahead(producers.count)
        return min(ahead * batch_nbytes, options.memory_nbytes) + producers.count * batch_nbytes
    slot = slot_nbytes(int(batch_nbytes))
    return float(producers.processes * share_of_worker(options).slots(slot) * slot)


def footprint(
    size: FeedSize, producers: Producers, *, cost: MemoryCost, starved: bool = False
) -> Footprint:
    """Return the memory with these producers. Raise OptionError if the batches do not fit."""
    line = cost.processes if producers.processes else cost.threads
    return Footprint(
        cost.trainer,
        ring_nbytes(size.batch, producers, starved=starved),
        size.pool,
        size.captured if producers.processes else 0.0,
        line.at(producers.processes or producers.count) - cost.trainer,
    )
