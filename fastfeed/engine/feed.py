"""The engine: source, producers and stages as one stream of checked batches, for any sink."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from fastfeed.core.batch import Batch, BatchSpec
from fastfeed.core.position import FROM_THE_START, ONLY_STREAM, Position
from fastfeed.core.stats import Consumption, Snapshot, StageRow, total
from fastfeed.core.status import FEED_ENDED, FEED_FAILED, FEED_STOPPED, FeedStatus, state_of
from fastfeed.engine.epoch_schedule import EpochSchedule, PartialEpoch, ResumePoint
from fastfeed.engine.order_stage import (
    PRODUCERS_JOIN_S,
    CutStage,
    Cutter,
    OrderStage,
    no_batch,
    run_is_over,
)
from fastfeed.engine.runtime_warnings import RuntimeWarnings
from fastfeed.engine.shuffle_pool import pack_origins
from fastfeed.engine.stage import Stage
from fastfeed.errors import FeedError, FeedStopped
from fastfeed.options import FeedOptions
from fastfeed.producers.inbox import EpochPlan
from fastfeed.producers.process.supervisor import SharedWorkers
from fastfeed.producers.threads import ThreadProducers
from fastfeed.source import IndexedSource, Source, source_from

if TYPE_CHECKING:
    from fastfeed.producers.process.processes import ProcessProducers


class Feed:
    """The epochs of a source, run after run.

    `start` the producers, `take` batches until it returns None (a run, or an epoch, is over: the
    next `take` begins the next one, with the same producers), `stop`. One consumer at a time.
    A batch passes a chain of stages: `order` (a CutStage unless given), the stage that a sink
    inserts, and a DaliStage where DALI augments. Feeds with the same `workers` share worker
    processes; the first one leads.
    """

    def __init__(
        self,
        given: Any,
        options: FeedOptions,
        *,
        seed: int,
        resume: ResumePoint | None = None,
        order: OrderStage | None = None,
        workers: SharedWorkers | None = None,
    ) -> None:
        self.options = options
        resume = resume or ResumePoint(per_run=options.epochs or 1)
        starts = resume.starts
        source = source_from(given, options, start=starts.get(ONLY_STREAM), ends=resume.ends)
        self.schedule = EpochSchedule(resume, again=source.repeatable)
        streams = [] if source.ordered else range(resume.streams or options.parallel)
        passed = tuple(starts.get(n, FROM_THE_START).first for n in streams)
        gaps = starts.get(ONLY_STREAM, FROM_THE_START).gaps
        plan = EpochPlan(seed, self.schedule.epochs, self.schedule.granted, passed, gaps)
        workers = workers or SharedWorkers()
        leads = workers.claim()
        self._producers = producers_for(source, options, plan=plan, workers=workers, leads=leads)
        self.warnings = RuntimeWarnings(options, self._producers.rows, shares=not leads)
        self._position = position_in(source, options, seed=seed, resume=resume)
        self._order = order or CutStage()
        self._order.bind(
            self._producers,
            options,
            schedule=self.schedule,
            position=self._position,
            rest=PartialEpoch(starts, ordered=source.ordered),
            streams=list(streams) or [ONLY_STREAM],
        )
        self._consumption = Consumption()
        self._stages: list[Stage] = [self._order]
        if options.packed:
            # a third of the time that `import fastfeed` would take
            from fastfeed.engine.dali_stage import DaliStage

            dali = DaliStage(options, self._producers.rows, row=self._consumption.row)
            self._stages.append(dali.after(self._order))
        self._late: Batch | None = None  # taken from the stages, and not by the consumer
        # of a sink that acknowledges: records of the source in each batch that it has
        self._owed: deque[int] | None = None
        self.error: BaseException | None = None
        self._on_failure: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start the producers."""
        self._producers.start()

    def first(self) -> Batch:
        """Return the first batch of the order as soon as there is one; it is delivered later.

        Raise SpecError where the source has no batch, ProducerError where it fails, FeedTimeout
        where it stalls.
        """
        if self.error is not None:
            raise self.error
        over = False
        try:
            with self._order.moving:
                while (batch := self._order.take()) is None and not self._order.ended:
                    over = True  # a run was restored at its end: the next one begins
            if batch is not None:
                self.schedule.owe_end(over)
                self._order.put_back(batch)
                for stage in self._stages:
                    stage.learn(batch)
                return batch
        except FeedError as error:
            self._fail(error)
        raise (run_is_over if self.schedule.may_be_empty else no_batch)()

    def recut(self, cutter: Cutter) -> None:
        """Cut all batches with `cutter`, also the first, where nothing was taken or shuffled."""
        assert isinstance(self._order, CutStage)
        self._order.recut(cutter)

    def insert(self, stage: Stage) -> None:
        """Pass all batches through `stage`, before DALI has them and before the first `take`."""
        chain = [stage, *self._stages[1:]]
        self._stages[1:] = [
            each.after(before) for each, before in zip(chain, [self._order, *chain], strict=False)
        ]

    def defer_acknowledgement(self, starving: Callable[[], bool]) -> None:
        """Leave it to the sink to `acknowledge` what the training has consumed. Without batches for
        stall_timeout_s the feed fails only while `starving` returns True."""
        self._owed = deque()
        self._order.excuse(starving)

    def acknowledge(self, batches: int) -> None:
        """Note that the training has consumed `batches` more batches."""
        assert self._owed is not None
        with self._order.moving:
            rows = sum(self._owed.popleft() for _ in range(batches))
            self._position.delivered(rows, batches)
            self._position.commit()

    @property
    def owes(self) -> bool:
        """True if a batch was taken and is not acknowledged."""
        return bool(self._owed)

    def take(self) -> Batch | None:
        """Return the next batch, or None after the last of a run; the time inside counts as waiting
        for input."""
        with self._order.moving:
            return self._take()

    def _take(self) -> Batch | None:
        start, shuffled_s = time.perf_counter(), self._order.shuffle_s
        if self.error is not None:
            raise self.error
        last = self._stages[-1]
        if self._owed is None:
            self._position.commit()
        try:
            batch = self._late = last.take() if self._late is None else self._late
        except FeedError as error:
            self._fail(error)
        now = time.perf_counter()
        if batch is not None:
            rows = batch.rows + last.lost
            if self._consumption.count(batch.rows, batch.nbytes, waited_s=now - start, now_s=now):
                self._consumption.row.shuffle_s += self._order.shuffle_s - shuffled_s
                copied = self._producers.copied
                self.warnings.look(now, copied=copied, first_s=self._consumption.first_s)
            if self._owed is not None:
                self._owed.append(rows)
            elif self._order.shuffles:
                self._position.shuffled(rows)
            else:
                self._position.delivered(rows, 1)
            self._late = None
        return batch

    def count_cpu(self, seconds: float) -> None:
        """Count CPU time that handing over took."""
        self._consumption.row.cpu_s += seconds

    def stop(self, join_s: float = PRODUCERS_JOIN_S, *, failed: bool = False) -> bool:
        """End every producer, from any thread; return True if all have ended within `join_s`.
        `failed`: the step may have failed on the batch that was taken last."""
        self.warnings.stop()
        self._position.close(failed=failed)
        self._producers.stop()
        return self._producers.join(join_s)

    def resize(self, options: FeedOptions) -> None:
        """Go on with the producers of `options`, of a source of one order. From any thread."""
        self._producers.resize(options)
        self.options = options

    def call_on_failure(self, callback: Callable[[], None]) -> None:
        """Have `callback` called once the feed has failed and stopped."""
        self._on_failure = callback

    def state(self) -> dict[str, Any]:
        """Return the position behind the batch that was taken last, as JSON."""
        return as_json(self.mark())

    def mark(self) -> dict[str, Any]:
        """Return that position in arrays; `as_json` packs it, which takes longer."""
        with self._order.moving:
            return self._stages[-1].state()

    @property
    def spec(self) -> BatchSpec:
        """The spec of the batches; known once one was taken."""
        return self._stages[-1].spec

    @property
    def counts(self) -> tuple[int, int]:
        """Batches and records that were delivered, those before a resume included."""
        return self._position.batches, self._position.records

    @property
    def ended(self) -> bool:
        """True if the last batch was taken."""
        return all(stage.ended for stage in self._stages)

    @property
    def threads(self) -> Sequence[threading.Thread]:
        """The threads of this process that the feed runs."""
        return [*self._producers.threads, *self.warnings.threads]

    def stacks(self) -> str:
        """Return the stacks of all producers."""
        return self._producers.stacks()

    def snapshot(self) -> Snapshot:
        """Return the counters of now."""
        depth = sum([stage.depth for stage in self._stages])
        over = self.ended or self.schedule.told
        taken, producers = self._consumption, self._producers
        until_s = taken.last_s if over else time.perf_counter()
        rows = producers.rows()
        ready, nbytes = producers.depth
        return Snapshot(
            elapsed_s=0.0 if taken.first_s < 0 else until_s - taken.first_s,
            produced=total((*rows, StageRow(read_s=producers.read_s))),
            consumed=replace(taken.row, copied=producers.copied),
            depth=ready + depth,
            depth_nbytes=nbytes,
            producers=rows,
            slots=producers.audit(),
            set_aside=producers.aside,
            taken_s=max(0.0, taken.last_s - taken.first_s),
        )

    def status(self) -> FeedStatus:
        """Return what the feed and each producer are doing, without a wait for any of them."""
        stopped = self._producers.stopped
        state = state_of((self.error is not None, stopped, self.ended, self.schedule.told))
        over = state in (FEED_FAILED, FEED_ENDED, FEED_STOPPED) and not any(
            t.is_alive() for t in self.threads
        )
        return FeedStatus(state, str(self.error or ""), over, *self._producers.status())

    def _fail(self, error: FeedError) -> NoReturn:
        """End the feed on `error`, which every later `take` raises again."""
        if not isinstance(error, FeedStopped) and self.error is None:
            self.error = error
            self.stop(0)
            self._on_failure()
        raise error


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


def as_json(mark: dict[str, Any]) -> dict[str, Any]:
    """Return the position that `Feed.mark` has returned, as JSON."""
    if (pool := mark["pool"]) is None or isinstance(pool["origins"], str):
        return mark
    return {**mark, "pool": {**pool, "origins": pack_origins(pool["origins"])}}
