"""The first stage: what the producers make, in epochs and runs, put in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fastfeed.core.batch import Batch, BatchSpec
from fastfeed.core.collate import PassThrough, Rebatcher, SizeChecker
from fastfeed.core.position import Position
from fastfeed.engine.epoch_schedule import EpochSchedule, PartialEpoch
from fastfeed.engine.stage import Stage
from fastfeed.errors import FeedError, FeedStopped, FeedTimeout, OptionError, SpecError, StateError
from fastfeed.options import FeedOptions
from fastfeed.producers.reorder import END_OF_EPOCH, ProducedBatch, Timeout

if TYPE_CHECKING:
    from fastfeed.producers.process.processes import ProcessProducers
    from fastfeed.producers.threads import ThreadProducers

Cutter = SizeChecker | Rebatcher | PassThrough
PRODUCERS_JOIN_S = 1.8  # a producer that has ended its work is gone long before
INTERRUPTED = (
    "an exception interrupted the feed or its shuffle in the middle of a batch, and which records "
    "were delivered is unknown: restore a state that was saved before"
)


class OrderStage(Stage):
    """Takes items from the producers, and makes batches of them: see CutStage and ShuffleStage.

    An exception of a signal handler during the wait for an item changes nothing. One at any other
    moment of `take` leaves the order undefined, and every later call raises StateError.
    """

    shuffles = False
    shuffle_s = 0.0  # seconds that it took

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque()  # that are ready
        self._position = Position(0)
        self._over = False  # nothing more comes from the producers
        self._gave = False  # a batch, ever
        self._broken = False  # True in the middle of `take`
        self._granted = (0, 0)  # epochs that the producers may begin, and those waited for
        # held by the feed while a batch and the position move, but not during the wait for an item:
        # another thread may ask for the state meanwhile
        self.moving = threading.Condition()
        self._starving: Callable[[], bool] = lambda: True

    def bind(
        self,
        producers: ProcessProducers | ThreadProducers,
        options: FeedOptions,
        *,
        schedule: EpochSchedule,
        position: Position,
        rest: PartialEpoch,
        streams: Sequence[int],
    ) -> None:
        """Take the items of `producers`, of which `rest` passes, and record in `position` what
        arrives from these streams."""
        self._producers, self._options = producers, options
        self._schedule, self._position, self._rest = schedule, position, rest
        self._streams = streams

    def excuse(self, starving: Callable[[], bool]) -> None:
        """Wait for ever while `starving` returns False."""
        self._starving = starving

    def take(self) -> Batch | None:
        """Return the next batch. Raise StateError after an exception that broke the order off,
        FeedTimeout where none comes, and what producers raise."""
        if self._broken:
            raise StateError(INTERRUPTED)
        schedule = self._schedule
        if schedule.told:
            schedule.go_on()
        self._grant()
        if schedule.owe_end(False):
            return None
        self._broken = True
        batch = self._next()
        self._broken = False
        return batch

    def _grant(self) -> None:
        """Let the producers begin the epochs that they may by now."""
        granted = (self._schedule.granted, self._schedule.asked)
        if self._granted != granted:  # also where an exception interrupted the last time
            self._producers.allow(granted[0], asked=granted[1])
            self._granted = granted

    def put_back(self, batch: Batch) -> None:
        """Let `take` return the first batch again."""
        self._batches.appendleft(batch)
        self._gave = False

    @property
    def spec(self) -> BatchSpec:
        """The spec of the batches."""
        spec = self._producers.spec
        assert spec is not None  # a batch exists, and it was checked against the spec
        return spec

    @property
    def ready(self) -> bool:
        """True if `take` would return at once."""
        return bool(self._batches) or self._producers.ready

    @property
    def depth(self) -> int:
        """Batches that are ready."""
        return len(self._batches)

    @property
    def ended(self) -> bool:
        """True if the last batch was taken."""
        return self._over and not self._batches

    def state(self) -> dict[str, Any]:
        """Return the position, and the first epoch of its run."""
        run: dict[str, Any] = {"run_first": self._schedule.state_first, "pool": None, "sizes": {}}
        return {**self._position.state(), **run}

    # What a subclass adds: `_wants` comes before each `_take_in`, or else `_draw`.

    @property
    def _holds_epoch(self) -> bool:
        """True if records of an epoch are left when its input ends."""
        return False

    @property
    def _finished(self) -> bool:
        """True if no record is left inside."""
        return True

    @property
    def _dropped(self) -> int:
        """Records that were left out because they did not fill a batch."""
        raise NotImplementedError

    def _wants(self, at_hand: bool) -> bool:
        """Return True if input is needed before the next batch; `at_hand`: more comes in this
        run."""
        return True

    def _take_in(self, batch: Batch | None, origin: ProducedBatch) -> None:
        """Take in the records of one item, or None."""
        raise NotImplementedError

    def _end_input(self, *, last: bool) -> None:
        """End an epoch's input; `last`: no epoch of this run follows."""
        raise NotImplementedError

    def _flush(self) -> None:
        """End all input."""
        raise NotImplementedError

    def _draw(self) -> Batch | None:
        """Return a batch, or None where an epoch ends."""
        raise NotImplementedError

    def _next(self) -> Batch | None:
        schedule = self._schedule
        while True:
            if self._batches:
                self._gave = True
                self._batches[0].refuse_changed()
                return self._batches.popleft()
            if self._over or schedule.paused:
                schedule.told = schedule.paused
                return None
            if self._wants(schedule.may_read):
                self._pass_in(self._receive())
            elif (batch := self._draw()) is not None:
                self._gave = True
                return batch
            else:
                self._over = self._finished
                schedule.delivered()
                self._refuse_nothing()

    def _receive(self) -> ProducedBatch | None:
        while True:
            self._broken = False  # an exception during the wait breaks nothing
            self._grant()
            try:
                produced = self._waited()
            except Timeout:
                # batches are given to this rank if the others die
                if self._position.waits_for_others or not self._starving():
                    continue
                raise FeedTimeout(
                    f"no batch arrived for {self._options.stall_timeout_s:g} s (stall_timeout_s). "
                    f"What the producers are doing:\n{self._producers.stacks()}"
                ) from None
            except FeedError:
                raise
            except BaseException as error:
                # of a signal handler: the exception that it interrupted is no part of it
                error.__suppress_context__ = True
                raise
            self._broken = True
            return produced

    def _waited(self) -> ProducedBatch | None:
        produced: list[ProducedBatch | None] = []
        try:  # an exception of a signal handler may come as soon as the lock is released
            self.moving.release()
            produced.append(self._producers.take(self._options.stall_timeout_s))
        finally:
            self._hold(produced)
        return produced[0]

    def _hold(self, produced: Sequence[ProducedBatch | None]) -> None:
        """Acquire the lock again, whatever signal handlers raise meanwhile; then raise that."""
        interruption: BaseException | None = None
        while True:
            try:
                if self._holds():
                    break
                self.moving.acquire()
            except BaseException as error:
                interruption = error
        if interruption is not None:
            self._broken = bool(produced)  # the item is lost
            raise interruption

    def _holds(self) -> bool:
        try:
            self.moving.notify()
        except RuntimeError:  # of a thread that does not hold the lock
            return False
        return True

    def _pass_in(self, produced: ProducedBatch | None) -> None:
        if produced is None:
            self._finish()
        elif produced is END_OF_EPOCH:
            self._end_epoch()
        else:
            batch = produced.batch
            if batch is not None and self._rest:
                batch = self._rest.of(batch, stream=produced.stream, item=produced.number)
                if batch is None:
                    return
            self._take_in(batch, produced)

    def _end_epoch(self) -> None:
        """Note that all of an epoch has come from the producers."""
        schedule = self._schedule
        schedule.received()
        self._rest.clear()
        if self._holds_epoch:
            self._end_input(last=not schedule.again)
            return
        schedule.delivered()
        self._end_input(last=schedule.paused)
        self._refuse_nothing()

    def _finish(self) -> None:
        if self._producers.stopped:
            self._broken = False
            raise FeedStopped("the runner was stopped: make a new FeedRunner to go on")
        self._flush()
        self._producers.join(PRODUCERS_JOIN_S)
        if self._holds_epoch:
            self._schedule.received_all()
        else:
            self._refuse_nothing(at_last=True)
        self._over = self._finished

    def _refuse_nothing(self, *, at_last: bool = False) -> None:
        """Raise where an epoch has ended without a batch: an endless run would never find out."""
        schedule = self._schedule
        if self._gave or self._batches or schedule.may_be_empty or self._options.stealing:
            return
        if self._producers.spec is None:
            raise no_batch()
        if (dropped := self._dropped) and (at_last or schedule.paused):
            raise never_filled(dropped, self._options.batch_size)


class CutStage(OrderStage):
    """Batches in the order of their items, cut by `cutter`."""

    def __init__(self, cutter: Cutter | None = None) -> None:
        super().__init__()
        self._cutter: Cutter = cutter or PassThrough()

    def recut(self, cutter: Cutter) -> None:
        """Cut all batches with `cutter`, those that are ready included."""
        early, self._cutter = list(self._batches), cutter
        self._batches.clear()
        for batch in early:
            self._batches.extend(cutter.push(batch))
        if self._over:
            self._flush()

    def state(self) -> dict[str, Any]:
        """Return the state with the size of each stream's batches, where they stay as produced."""
        sizes = self._cutter.sizes if isinstance(self._cutter, SizeChecker) else {}
        return {**super().state(), "sizes": {str(n): size for n, size in sorted(sizes.items())}}

    @property
    def _dropped(self) -> int:
        return self._cutter.dropped

    def _take_in(self, batch: Batch | None, origin: ProducedBatch) -> None:
        """Cut the records of one item. Raise SpecError where batches stay as produced and their
        leading dimension changes."""
        rows = 0 if batch is None else batch.rows
        self._position.arrived(origin.stream, origin.number, rows=rows)
        if batch is not None and rows:
            self._batches.extend(self._cutter.push(batch, origin.stream, place=origin.place))

    def _end_input(self, *, last: bool) -> None:
        """Release the remainder, unless batches may straddle epochs."""
        dropped = self._dropped
        self._batches.extend(self._cutter.flush() if last else self._cutter.end_epoch())
        self._position.dropped(self._dropped - dropped)
        self._position.end_epoch()

    def _flush(self) -> None:
        self._batches.extend(self._cutter.flush())


def no_batch() -> SpecError:
    """Return the error of a source without any batch."""
    return SpecError(
        "the source ended before its first batch (batches of zero records are skipped): it must "
        "have at least one record. Is the iterator used up, the path empty, does filter= leave "
        "nothing, or have other ranks taken all?"
    )


def never_filled(records: int, batch_size: int | None) -> OptionError:
    """Return the error of a source that last_batch="drop" would lose whole."""
    return OptionError(
        f"batch_size={batch_size} can never be filled: the source has {records} records and "
        'last_batch="drop". Lower batch_size, or set last_batch="keep"'
    )


def run_is_over() -> StateError:
    """Return the error of a sink that learns from the first batch, where none is left."""
    return StateError(
        "the state is at the end of its run: all epochs were delivered. Raise epochs= to go on"
    )
