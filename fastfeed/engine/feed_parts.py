"""The parts of a feed that depend on its options: producers, and the consumer's position."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fastfeed.core.position import Position
from fastfeed.engine.epoch_schedule import ResumePoint
from fastfeed.options import FeedOptions
from fastfeed.producers.epoch_gate import EpochPlan
from fastfeed.producers.process.shared_workers import SharedWorkers
from fastfeed.producers.threads import ThreadProducers
from fastfeed.source import IndexedSource, Source

if TYPE_CHECKING:
    from fastfeed.producers.process.processes import ProcessProducers


def producers_for(
    source: Source, options: FeedOptions, *, plan: EpochPlan, workers: SharedWorkers, leads: bool
) -> ProcessProducers | ThreadProducers:
    """Return producers in worker processes and remote ones, or in threads of this process."""
    if not options.workers:
        return ThreadProducers(source, options, plan=plan, leads=leads)
    # a fifth of the time that `import fastfeed` would take, and only Linux has all of it
    from fastfeed.producers.process.processes import ProcessProducers

    if options.remote is not None and leads:
        from fastfeed.producers.remote.fleet import RemoteFleet

        workers.employ(partial(RemoteFleet, options))
    return ProcessProducers(source, options, plan=plan, workers=workers, leads=leads)


def position_in(
    source: Source, options: FeedOptions, *, seed: int, resume: ResumePoint
) -> Position:
    """Return the position in a stream of one's own, or in a job whose ranks share the batches."""
    if not options.stealing:
        return Position(resume.epoch, resume.starts, counts=resume.counts)
    # sockets are needed by few
    from fastfeed.engine.claimed_position import ClaimedPosition

    assert isinstance(source, IndexedSource)  # source_from refuses others
    return ClaimedPosition(source, options, seed=seed, resume=resume)
