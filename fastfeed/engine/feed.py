"""The engine: source, producers and stages as one stream of checked batches, for any sink."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from fastfeed.core.batch import Batch, BatchSpec
from fastfeed.core.position import FROM_THE_START, ONLY_STREAM, Position
from fastfeed.core.stats import Consumption, Snapshot, total
from fastfeed.core.status import FEED_ENDED, FEED_FAILED, FEED_STOPPED, FeedStatus, state_of
from fastfeed.engine.cut_stage import CutStage, Cutter
from fastfeed.engine.epoch_schedule import EpochSchedule, PartialEpoch, ResumePoint
from fastfeed.engine.runtime_warnings import RuntimeWarnings
from fastfeed.engine.shuffle.storage import pack_origins
from fastfeed.engine.shuffle_stage import ShuffleStage, keep_origins
from fastfeed.errors import FeedError, FeedStopped, FeedTimeout, OptionError, SpecError, StateError
from fastfeed.options import FeedOptions
from fastfeed.producers.inbox import EpochPlan
from fastfeed.producers.process.supervisor import SharedWorkers
from fastfeed.producers.reorder import END_OF_EPOCH, ProducedBatch, Timeout
from fastfeed.producers.threads import ThreadProducers
from fastfeed.source import IndexedSource, Source, source_from

if TYPE_CHECKING:
    from fastfeed.engine.dali_stage import DaliStage
    from fastfeed.producers.process.processes import ProcessProducers

PRODUCERS_JOIN_S = 1.8  # a producer that has ended its work is gone long before


class Feed:
    """The epochs of a source, run after run.

    `start` the producers, `take` batches until it returns None (a run, or an epoch, is over: the
    next `take` begins the next one, with the same producers), `stop`. One consumer at a time.
    A batch passes PartialEpoch, `order` (a CutStage unless given) and, where DALI augments, a
    DaliStage. Feeds with the same `workers` share worker processes; the first one leads.
    """

    def __init__(
        self,
        given: Any,
        options: FeedOptions,
        *,
        seed: int,
        resume: ResumePoint | None = None,
        order: CutStage | ShuffleStage | None = None,
        workers: SharedWorkers | None = None,
    ) -> None:
        self.options = options
        resume = resume or ResumePoint(per_run=options.epochs or 1)
        starts = resume.starts
        source = source_from(given, options, start=starts.get(ONLY_STREAM))
        self.schedule = schedule = EpochSchedule(resume, again=source.repeatable)
        callable_streams = [] if source.ordered else range(resume.streams or options.parallel)
        streams = list(callable_streams) or [ONLY_STREAM]
        passed = tuple(starts.get(n, FROM_THE_START).first for n in callable_streams)
        plan = EpochPlan(seed, schedule.epochs, schedule.allowed, passed)
        workers = workers or SharedWorkers()
        leads = workers.claim()
        self._producers = producers_for(source, options, plan=plan, workers=workers, leads=leads)
        self.warnings = RuntimeWarnings(options, self._producers.rows, shares=not leads)
        self._rest = PartialEpoch(starts, ordered=source.ordered)
        self._position = position_in(source, options, seed=seed, resume=resume)
        self._order = order or CutStage()
        self._order.bind(self._position, streams)
        self._held: ProducedBatch | None = None  # received, and not in the shuffle's pool yet
        self._granted = (0, 0)  # the epochs that the producers may begin, and those waited for
        self._ended = False
        self.error: BaseException | None = None
        self._on_failure: Callable[[], None] = lambda: None
        self._starving: Callable[[], bool] | None = None  # of a sink that acknowledges
        self._consumption = Consumption()
        self._dali = self._dali_stage()
        self._augments = self._dali is not None  # False where the sink drives the DALI stage

    def start(self) -> None:
        """Start the producers."""
        self._producers.start()

    def first(self) -> Batch:
        """Return the first batch as soon as there is one; `take` returns it again.

        Raise SpecError where the source has no batch, ProducerError where it fails, FeedTimeout
        where it stalls.
        """
        over = False
        while (batch := self._pull()) is None and not self.ended:
            over = True  # a run was restored at its end: the next one begins
        if batch is None:
            raise self.error or (run_is_over if self.schedule.may_be_empty else no_batch)()
        self.schedule.owe_end(over)
        self._order.ready.appendleft(batch)
        if self._dali is not None:
            try:
                self._dali.learn(batch)
            except FeedError as error:
                self._fail(error)
        return batch

    def recut(self, cutter: Cutter) -> None:
        """Cut all batches with `cutter`, also the one that `first` returned. Before the first
        `take`, of a feed that does not shuffle."""
        assert isinstance(self._order, CutStage)
        self._order.recut(cutter, ended=self._ended)

    def detach_dali(self) -> DaliStage | None:
        """Leave it to the sink to drive the DALI stage, behind a shuffle of its own; None where
        there is none. From here on `take` returns packed batches."""
        self._augments = False
        return self._dali

    def defer_acknowledgement(self, starving: Callable[[], bool]) -> None:
        """Leave it to the sink to `acknowledge` what the training has consumed. Without batches for
        stall_timeout_s the feed fails only while `starving` returns True."""
        self._starving = starving

    def acknowledge(self, rows: int, batches: int = 1) -> None:
        """Note that the training has consumed `batches` more batches, of `rows` records of the
        source."""
        self._position.delivered(rows, batches)
        self._position.commit()

    def take(self) -> Batch | None:
        """Return the next batch, or None after the last of a run; the time inside counts as waiting
        for input."""
        start = time.perf_counter()
        batch = self._augmented() if self._augments else self._pull()
        now = time.perf_counter()
        if batch is not None:
            rows = self.rows_of(batch) if self._augments else batch.rows
            if self._consumption.count(batch.rows, batch.nbytes, waited_s=now - start, now_s=now):
                copied = self._producers.copied
                self.warnings.look(now, copied=copied, first_s=self._consumption.first_s)
            if self._order.shuffles:
                self._position.shuffled(rows)
                if not self._augments:
                    self._order.given()
            elif self._starving is None:
                self._position.delivered(rows, 1)
        return batch

    def rows_of(self, batch: Batch) -> int:
        """Return how many records of the source went into the batch that was taken last; those that
        DALI left out count."""
        return batch.rows if self._dali is None else self._dali.rows

    def count_cpu(self, seconds: float) -> None:
        """Count CPU time that handing over took."""
        self._consumption.row.cpu_s += seconds

    def stop(self, join_s: float = PRODUCERS_JOIN_S) -> bool:
        """End every producer, from any thread; return True if all have ended within `join_s`."""
        self.warnings.stop()
        self._position.close()
        self._producers.stop()
        return self._producers.join(join_s)

    def resize(self, options: FeedOptions) -> None:
        """Go on with the producers of `options`, of a source of one order. From any thread."""
        self.options = options
        self._producers.resize(options)

    def call_on_failure(self, callback: Callable[[], None]) -> None:
        """Have `callback` called once the feed has failed and stopped."""
        self._on_failure = callback

    def state(self) -> dict[str, Any]:
        """Return where the consumer is, and the first epoch of the run that it is in."""
        if self._dali is None or not self._order.shuffles:
            return self._order_state(pack_origins)
        return self._dali.state(self._order_state(keep_origins), pack_origins)

    @property
    def spec(self) -> BatchSpec:
        """The spec of the batches; known once one was taken."""
        if self._dali is None:
            return self._produced_spec
        assert self._dali.spec is not None
        return self._dali.spec

    @property
    def counts(self) -> tuple[int, int]:
        """Batches and records that were delivered, those before a resume included."""
        return self._position.batches, self._position.records

    @property
    def resumed(self) -> bool:
        """True if something was delivered before this feed began."""
        return self._position.resumed

    @property
    def ended(self) -> bool:
        """True if the last batch was taken."""
        return self._ended and not self._order.ready and (self._dali is None or self._dali.empty)

    @property
    def ready(self) -> bool:
        """True if `take` would return at once, as far as can be known without waiting."""
        return bool(self._order.ready) or self._producers.ready

    @property
    def threads(self) -> Sequence[threading.Thread]:
        """The threads of this process that the feed runs."""
        return [*self._producers.threads, *self.warnings.threads]

    def stacks(self) -> str:
        """Return the stacks of all producers."""
        return self._producers.stacks()

    def snapshot(self) -> Snapshot:
        """Return the counters of now."""
        depth = len(self._order.ready) + (0 if self._dali is None else self._dali.depth)
        over = self.ended or self.schedule.told
        until_s = self._consumption.last_s if over else time.perf_counter()
        return self._consumption.snapshot(self._producers, depth=depth, until_s=until_s)

    def status(self) -> FeedStatus:
        """Return what the feed and each producer are doing, without a wait for any of them."""
        stopped = self._producers.stopped
        state = state_of((self.error is not None, stopped, self.ended, self.schedule.told))
        over = state in (FEED_FAILED, FEED_ENDED, FEED_STOPPED) and not any(
            t.is_alive() for t in self.threads
        )
        return FeedStatus(state, str(self.error or ""), over, *self._producers.status())

    @property
    def _produced_spec(self) -> BatchSpec:
        spec = self._producers.spec
        assert spec is not None  # a batch exists, and it was checked against the spec
        return spec

    def _dali_stage(self) -> DaliStage | None:
        if not self.options.packed:
            return None
        # a third of the time that `import fastfeed` would take
        from fastfeed.engine.dali_stage import DaliStage

        row, rows = self._consumption.row, self._producers.rows
        return DaliStage(self.options, row=row, elsewhere=lambda: total(rows()).errors)

    def _augmented(self) -> Batch | None:
        from fastfeed.engine.dali_stage import drive

        if self.error is None and self._producers.stopped:
            raise stopped()
        assert self._dali is not None
        try:
            return drive(self._dali, self._marked, at_hand=lambda: self.ready)
        except FeedError as error:
            # errors that concern the consumer, not the feed
            if error is self.error or isinstance(error, (FeedStopped, StateError)):
                raise
            self._fail(error)

    def _marked(self) -> tuple[Batch, Any] | None:
        """Return the next packed batch, with the state after it if the order stage shuffles.

        That stage forgets a batch when the next one is drawn.
        """
        order = self._order
        if not order.shuffles:
            batch = self._pull()
            return None if batch is None else (batch, None)
        assert self._dali is not None
        if self._dali.mark is None and order.holds_epoch:
            self._dali.mark = self._order_state(keep_origins)
        batch = self._pull()
        if batch is None:
            return None
        order.given()
        return batch, self._order_state(keep_origins)

    def _order_state(self, pack: Callable[[Any], Any]) -> dict[str, Any]:
        run: dict[str, Any] = {"run_first": self.schedule.state_first, "pool": None, "sizes": {}}
        return self._order.state({**self._position.state(), **run}, pack)

    def _pull(self) -> Batch | None:
        """Return the next batch of the order stage; None where a run or an epoch is over."""
        self._grant()
        if self._starving is None:
            self._position.commit()
        batch = self._next()
        if batch is not None and self._dali is not None:
            self._dali.expect(self._produced_spec)
        return batch

    def _grant(self) -> None:
        """Begin the next run or epoch after one that is over, and let the producers begin as many
        epochs as it may use."""
        if self.schedule.told:
            self.schedule.go_on()
        granted = (self.schedule.allowed, self.schedule.asked)
        if self._granted != granted:  # also where an exception interrupted the last time
            self._producers.allow(granted[0], asked=granted[1])
            self._granted = granted

    def _next(self) -> Batch | None:
        order, schedule = self._order, self.schedule
        if schedule.owe_end(False):
            return None
        while True:
            if order.ready:
                return order.pop()
            if self._ended or schedule.paused:
                if self.error is not None:
                    raise self.error
                schedule.told = schedule.paused
                return None
            if order.wants(schedule.may_read):
                self._take_in(self._held or self._receive())
                self._held = None
            elif (batch := order.pop()) is not None:
                return batch
            else:
                self._end_drawn_epoch()

    def _receive(self) -> ProducedBatch | None:
        while True:
            try:
                return self._producers.take(self.options.stall_timeout_s)
            except Timeout:
                if self._position.waits_for_others:
                    continue  # for batches that are given to this rank if the others die
                if self._starving is None or self._starving():
                    self._fail(stalled(self.options.stall_timeout_s, self.stacks()))
            except BaseException as error:
                # of a signal handler: the exception that it interrupted is no part of it
                if not isinstance(error, FeedError):
                    error.__suppress_context__ = True
                self._fail(error)

    def _take_in(self, produced: ProducedBatch | None) -> None:
        if produced is None:
            self._finish()
        elif produced is END_OF_EPOCH:
            self._end_epoch()
        else:
            self._held = produced if self._order.shuffles else None
            batch = produced.batch
            try:
                if batch is not None and self._rest:
                    batch = self._rest.of(batch, stream=produced.stream, item=produced.number)
                    if batch is None:
                        return
                self._order.take_in(batch, produced)
            except FeedError as error:
                self._fail(error)

    def _end_drawn_epoch(self) -> None:
        """Go on to the next epoch: the shuffle has drawn all of one."""
        self._ended = self._order.turn()
        self.schedule.delivered()
        self._order.given()
        self._refuse_nothing()

    def _end_epoch(self) -> None:
        """Note that all of an epoch has come from the producers."""
        order, schedule = self._order, self.schedule
        schedule.received()
        self._rest.clear()
        if order.holds_epoch:
            order.end_epoch(last=not schedule.again)
            return
        schedule.delivered()
        order.end_epoch(last=schedule.paused)
        self._refuse_nothing()

    def _finish(self) -> None:
        if self._producers.stopped:
            raise self.error or stopped()
        self._order.flush()
        self._producers.join(PRODUCERS_JOIN_S)
        if self._order.holds_epoch:
            self.schedule.received_all()
            self._ended = self._order.finished
            return
        self._refuse_nothing(at_last=True)
        self._ended = True

    def _refuse_nothing(self, *, at_last: bool = False) -> None:
        """Fail where an epoch has ended without a batch: an endless run would never find out."""
        had = self._consumption.first_s >= 0 or (self._dali is not None and self._dali.depth)
        if had or self._order.ready or self.schedule.may_be_empty or self.options.stealing:
            return
        if self._producers.spec is None:
            self._fail(no_batch())
        if (dropped := self._order.dropped) and (at_last or self.schedule.paused):
            self._fail(never_filled(dropped, self.options.batch_size))

    def _fail(self, error: BaseException) -> NoReturn:
        """End the feed on `error`, which every later `take` raises again."""
        if isinstance(error, FeedError):
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


def no_batch() -> SpecError:
    """Return the error of a source without any batch."""
    return SpecError(
        "the source ended before its first batch (batches of zero records are skipped): it must "
        "have at least one record. Is the iterator used up, the path empty, does filter= leave "
        "nothing, or have other ranks taken all?"
    )


def run_is_over() -> StateError:
    """Return the error of a sink that learns from the first batch, where none is left."""
    return StateError(
        "the state is at the end of its run: all epochs were delivered. Raise epochs= to go on"
    )


def never_filled(records: int, batch_size: int | None) -> OptionError:
    """Return the error of a source that last_batch="drop" would lose whole."""
    return OptionError(
        f"batch_size={batch_size} can never be filled: the source has {records} records and "
        'last_batch="drop". Lower batch_size, or set last_batch="keep"'
    )


def stalled(limit_s: float, stacks: str) -> FeedTimeout:
    """Return the error of producers that make no batch any more."""
    return FeedTimeout(
        f"no batch arrived for {limit_s:g} s (stall_timeout_s). What the producers are "
        f"doing:\n{stacks}"
    )


def stopped() -> FeedStopped:
    """Return the error of a feed that its owner has stopped."""
    return FeedStopped("the runner was stopped: make a new FeedRunner to go on")
