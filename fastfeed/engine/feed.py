"""The engine: source, producers and buffer as one stream of checked batches, whatever sink takes
them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from fastfeed.core.batch import Batch, BatchSpec
from fastfeed.core.collate import AsProduced, Rebatcher, UnsizedBatches
from fastfeed.core.position import FROM_THE_START, ONLY, Position
from fastfeed.core.stats import Consumption, Snapshot
from fastfeed.engine.augment_stage import AugmentStage
from fastfeed.engine.epoch_schedule import (
    EpochSchedule,
    PartialEpoch,
    ResumePoint,
    never_filled,
    no_batch,
    stalled,
    stopped,
)
from fastfeed.engine.runtime_warnings import RuntimeWarnings
from fastfeed.engine.shuffle_stage import ShuffleStage
from fastfeed.errors import FeedError
from fastfeed.options import FeedOptions
from fastfeed.producers.epoch_gate import EpochPlan
from fastfeed.producers.process.processes import ProcessProducers
from fastfeed.producers.reorder import END_OF_EPOCH, ProducedBatch, Timeout
from fastfeed.producers.threads import ThreadProducers
from fastfeed.shuffle.storage import packed
from fastfeed.source import source_from

JOIN_S = 1.8  # a producer that has ended its work is gone long before


class Feed:
    """The epochs of a source, run after run: `start`, `take` until it is None (a run, or an epoch,
    is over: the next `take` begins the next one, made by the same producers), `stop`. One consumer
    at a time."""

    def __init__(
        self,
        given: Any,
        options: FeedOptions,
        *,
        seed: int,
        span: ResumePoint | None = None,
        leader: Feed | None = None,
    ) -> None:
        self.options = options
        span = span or ResumePoint(per_run=options.epochs or 1)
        source = source_from(given, options, start=span.starts.get(ONLY))
        self.runs = runs = EpochSchedule(span, again=source.again)
        self._streams = [ONLY] if source.ordered else list(range(span.streams or options.producers))
        passed = (
            ()
            if source.ordered
            else tuple(span.starts.get(n, FROM_THE_START).first for n in self._streams)
        )
        kind: Any = ProcessProducers if options.processes else ThreadProducers
        course = EpochPlan(seed, runs.epochs, runs.allowed, passed)
        self._producers: ProcessProducers | ThreadProducers
        self._producers = kind(source, options, course=course, leader=leader and leader._producers)
        self.hints = RuntimeWarnings(options, self._producers.rows, shares=leader is not None)
        self._rest = PartialEpoch(span.starts, ordered=source.ordered)
        self._shuffled: ShuffleStage | None = None
        self.position = Position(span.epoch, span.starts, counts=span.counts)
        self.delivers = True  # whether what is taken is what the trainer has had
        self._allowed = (0, 0)  # what the producers have been told
        self._stage: AsProduced | Rebatcher | UnsizedBatches = UnsizedBatches()
        self._cut: deque[Batch] = deque()
        self._held: ProducedBatch | None = None  # received, and not in the shuffle's pool yet
        self._ended = False
        self.error: BaseException | None = None
        self.on_failure: Callable[[], None] = lambda: None
        # whether somebody waits for the batch that does not come
        self.starving: Callable[[], bool] = lambda: True
        self._consumption = Consumption()
        self.consumed = self._consumption.row
        self.augmented = AugmentStage(self) if options.packed else None

    def start(self) -> None:
        """Starts the producers."""
        self._producers.start()

    def first(self) -> Batch:
        """The first batch, as soon as it is made; it stays the first to be taken.

        Raises SpecError where the source has no batch, ProducerError where it fails, FeedTimeout
        where it stalls.
        """
        batch = None
        # where a run was restored at its end, the next one begins
        while batch is None and not self.ended:
            batch = self.pull()
        if batch is None:
            raise self.error or no_batch()
        self._cut.appendleft(batch)
        if self.augmented:
            self.augmented.look(batch)
        return batch

    def deliver(self, stage: AsProduced | Rebatcher | UnsizedBatches) -> None:
        """Has every batch, also those looked at already, pass `stage`. Before the first `take`."""
        early, self._stage = list(self._cut), stage
        self._cut.clear()
        for batch in early:
            self._cut.extend(stage.push(batch))
        if self._ended:
            self._cut.extend(stage.flush())

    def shuffle(self, shuffled: ShuffleStage) -> None:
        """Has every record pass a record-level shuffle. Before the first `take`."""
        self._shuffled = shuffled
        shuffled.had = lambda stream, item: self.position.arrived(stream, item, rows=0)

    def take(self) -> Batch | None:
        """The next batch, or None after the last of a run; the time inside counts as waiting for
        input."""
        start = time.perf_counter()
        behind = self.augmented if self.augmented and not self.augmented.outside else None
        if behind and self.error is None and self._producers.stopped:
            raise stopped()
        batch = self.pull() if behind is None else behind.take(self._shuffled)
        now = time.perf_counter()
        if batch is not None:
            rows = batch.rows if behind is None else behind.rows
            if self._consumption.count(batch.rows, batch.nbytes, waited_s=now - start, now_s=now):
                self.hints.look(
                    now, copied=self._producers.copied, first_s=self._consumption.first_s
                )
            if self._shuffled is not None:
                self.position.shuffled(rows)
                if behind is None:
                    self._shuffled.given()
            elif self.delivers:
                self.position.delivered(rows)
        return batch

    def stop(self, join_s: float = JOIN_S) -> bool:
        """Ends every producer and waits `join_s` for them; whether all have ended. From any thread,
        at any time."""
        self.hints.stop()
        self._producers.stop()
        return self._producers.join(join_s)

    def state(self) -> dict[str, Any]:
        """Where the consumer is, and the first epoch of the run that it is in."""
        return (
            self.augmented.state() if self.augmented and self._shuffled else self.raw_state(packed)
        )

    def raw_state(self, pack: Callable[[Any], Any]) -> dict[str, Any]:
        """The same of whoever pulls; `pack` makes text of where the records of a shuffle's pool
        came from."""
        sizes = sorted(self._stage.sizes.items()) if isinstance(self._stage, AsProduced) else []
        run = {
            "run_first": self.runs.first,
            "pool": None,
            "sizes": {str(stream): size for stream, size in sizes},
        }
        state = {**self.position.state(), **run}
        return (
            state
            if self._shuffled is None
            else self._shuffled.state(state, streams=self._streams, pack=pack)
        )

    @property
    def spec(self) -> BatchSpec:
        """The spec of the batches; known once one was taken."""
        return self.made_spec if self.augmented is None else self.augmented.spec

    @property
    def made_spec(self) -> BatchSpec:
        """The spec of what the producers make."""
        spec = self._producers.spec
        assert spec is not None  # a batch exists, and it was checked against the spec
        return spec

    @property
    def ended(self) -> bool:
        """Whether the last batch has been taken."""
        return (
            self._ended and not self._cut and (self.augmented is None or self.augmented.stage.empty)
        )

    @property
    def ready(self) -> bool:
        """Whether `take` would return at once, as far as can be known without waiting."""
        return bool(self._cut) or self._producers.ready

    @property
    def threads(self) -> Sequence[threading.Thread]:
        """The threads of this process that the feed runs."""
        return [*self._producers.threads, *self.hints.threads]

    def stacks(self) -> str:
        """What every producer is doing."""
        return self._producers.stacks()

    def snapshot(self) -> Snapshot:
        """The counters of now."""
        depth = len(self._cut) + (self.augmented.stage.depth if self.augmented else 0)
        until_s = self._consumption.last_s if self.ended or self.runs.told else time.perf_counter()
        return self._consumption.snapshot(self._producers, depth=depth, until_s=until_s)

    def pull(self) -> Batch | None:
        """What `take` gives, or what is augmented first, without counting it."""
        self._go_on()
        return self._next()

    def _go_on(self) -> None:
        """Begins the next run or epoch behind one that is over, and tells the producers what they
        may make."""
        if self.runs.told:
            self.runs.go_on()
        # also where an exception came between, last time
        if self._allowed != (self.runs.allowed, self.runs.asked):
            self._producers.allow(self.runs.allowed, asked=self.runs.asked)
            self._allowed = (self.runs.allowed, self.runs.asked)

    def _next(self) -> Batch | None:
        while not self._cut:
            if self._ended or self.runs.paused:
                if self.error is not None:
                    raise self.error
                self.runs.told = self.runs.paused
                return None
            if self._shuffled is None or self._shuffled.wants(self.runs.may_read):
                made = self._held or self._receive()
                self._held = None if self._shuffled is None or made is END_OF_EPOCH else made
                self._take_in(made)
                self._held = None
            else:
                self._draw(self._shuffled)
        return self._cut.popleft()

    def _receive(self) -> ProducedBatch | None:
        while True:
            try:
                return self._producers.take(self.options.stall_timeout_s)
            except Timeout:
                if self.starving():
                    self.fail(stalled(self.options.stall_timeout_s, self.stacks()))
            except BaseException as error:
                # a signal handler's: what it came amidst is no part of it
                if not isinstance(error, FeedError):
                    error.__suppress_context__ = True
                self.fail(error)

    def _take_in(self, made: ProducedBatch | None) -> None:
        if made is None:
            self._finish()
        elif made is END_OF_EPOCH:
            self._end_epoch()
        elif made.batch is None and self._shuffled is None:
            self.position.arrived(made.stream, made.number, rows=0)
        else:
            try:
                self._push(made, made.batch)
            except FeedError as error:
                self.fail(error)

    def _draw(self, shuffled: ShuffleStage) -> None:
        batch = shuffled.draw()
        if batch is not None:
            self._cut.append(batch)
            return
        self._ended = shuffled.turn()
        self.runs.delivered()
        shuffled.given()
        self._refuse_nothing()

    def _end_epoch(self) -> None:
        """All of an epoch has come from the producers."""
        self.runs.received()
        self._rest.clear()
        if self._shuffled is not None:
            self.position.end_epoch()
            self._shuffled.end_epoch()
            if not self.runs.again:
                self._shuffled.end()
            if self._shuffled.empty:
                self.runs.delivered()
                self._refuse_nothing()
            return
        self.runs.delivered()
        dropped = self._stage.dropped
        self._cut.extend(self._stage.flush() if self.runs.paused else self._stage.end_epoch())
        self.position.dropped(self._stage.dropped - dropped)
        self.position.end_epoch()
        self._refuse_nothing()

    def _push(self, made: ProducedBatch, batch: Batch | None) -> None:
        if batch is not None and self._rest:
            batch = self._rest.of(batch, stream=made.stream, item=made.number)
            if batch is None:
                return
        if self._shuffled is not None:
            self._shuffled.push(made, batch)
        elif batch is not None:
            self.position.arrived(made.stream, made.number, rows=batch.rows)
            if batch.rows:
                self._cut.extend(self._stage.push(batch, made.stream, place=made.place))

    def _finish(self) -> None:
        if self._producers.stopped:
            raise self.error or stopped()
        self._cut.extend(self._stage.flush())
        self._producers.join(JOIN_S)
        if self._shuffled is not None and not self._shuffled.empty:
            self.runs.received_all()
            self._shuffled.end()
            self._ended = self._shuffled.finished
            return
        self._refuse_nothing(at_last=True)
        self._ended = True

    def _refuse_nothing(self, *, at_last: bool = False) -> None:
        """An epoch has ended: there must have been a batch, or else an endless run would never find
        out."""
        had = self._consumption.first_s >= 0 or (self.augmented and self.augmented.stage.depth)
        if had or self._cut or self.runs.span.starts:
            return
        if self._producers.spec is None:
            self.fail(no_batch())
        dropped = self._stage.dropped if self._shuffled is None else self._shuffled.dropped
        if dropped and (at_last or self.runs.paused):
            self.fail(never_filled(dropped, self.options.batch_size))

    def fail(self, error: BaseException) -> None:
        """Ends the feed on `error`, which every later `take` meets again."""
        if isinstance(error, FeedError):
            self.error = error
            self.stop(0)
            self.on_failure()
        raise error
