"""The feeds of one runner, one after another: where the next one begins, and whose workers make its
batches."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

# Here, and not at the first use: a Ctrl-C is lost while numpy loads it.
from numpy.random import SeedSequence

from fastfeed.core.collate import AsProduced, Rebatcher
from fastfeed.core.position import Position
from fastfeed.core.stats import Snapshot
from fastfeed.engine.cut_stage import CutStage, Cutter
from fastfeed.engine.epoch_schedule import ResumePoint
from fastfeed.engine.feed import Feed
from fastfeed.engine.shuffle_stage import ShuffleStage
from fastfeed.errors import FeedStopped, OptionError, StateError
from fastfeed.live.hub import Watch, observe
from fastfeed.options import FeedOptions, Shuffle
from fastfeed.producers.process.shared_workers import SharedWorkers
from fastfeed.runner.checkpoint import (
    fingerprint,
    restored,
    saved,
    warn_of_costs,
)
from fastfeed.runner.choosing import (
    AUTO,
    ExecutorChoice,
    choose,
    refuse_misfits,
)
from fastfeed.runner.finalizer import Finalizer, leaving
from fastfeed.source import IndexedSource, source_from


class Stream:
    """A source under its options. Raises OptionError for what cannot work, now and not at the first
    batch."""

    def __init__(self, source: Any, options: FeedOptions) -> None:
        self.options = options
        self.kind = source_from(source, options)
        refuse_misfits(options)
        if options.lengths and not self.kind.records:
            raise OptionError(
                "lengths=True: needed single records (records=True, batch_size=32), got batches"
            )
        self.seed = new_seed() if options.seed is None else int(options.seed)
        self.feed: Feed | None = None
        self._source = source
        self._stopped = False
        self._said: set[str] = set()  # hints that the user has had
        self.resumed = False  # whether the first run begins in its middle
        self._ending: weakref.finalize[Any, Any] | None = None
        self._span = ResumePoint()  # where the next feed begins
        self._leader: Stream | None = None  # whose workers make these batches
        self._followers: list[weakref.ref[Stream]] = []  # whose batches these workers make
        self.choice: ExecutorChoice | None = None  # who augments and why, where that was measured
        # a session's queue knows what it has given
        self.of_session: Callable[[], Snapshot] | None = None
        self._watch: Watch | None = None  # from the first start on

    def iterated(self, *, each: bool = False) -> Feed:
        """The feed for a loop, of whole runs or of `each` epoch."""
        per_run = self.options.epochs if each else self.options.epochs or 1
        if self._leader is not None and self._leader._stopped:
            raise FeedStopped(
                "the runner whose workers make these batches was stopped: make new ones to go on"
            )
        # not started yet, or left in its run's last epoch
        if self._leader is not None and self._leader.feed is None:
            self._leader.iterated()
        if self.feed is not None and not self.feed.ended:
            self.feed.schedule.change(per_run, each=each)
            return self.feed
        if self.feed is not None and not self.kind.again:
            raise FeedStopped(
                "the source is an iterator and has ended: pass the function that makes it to go "
                "again"
            )
        return self._for_loops(replace(self._span, per_run=per_run, each=each))

    def for_session(self) -> Feed:
        """The feed for the queue of a session: one run, without end where epochs= is not given."""
        self._choose()
        span = replace(self._span, per_run=self.options.epochs, once=True)
        if span.pool is not None:
            raise StateError(
                "the state has records in the pool of a loop's shuffle, which a session's queue "
                "does not have: go on in a loop, or save with shuffle=False"
            )
        if span.left == 0:
            raise StateError(
                f"the state is at the end of its run: all {span.per_run} epochs were delivered. "
                "Raise epochs= to go on"
            )
        return self._new_feed(span)

    def pass_over(self, feed: Feed, epoch: int, *, counts: tuple[int, int]) -> Feed | None:
        """The feed for the epoch after one that was left early; None where that was the run's last."""
        if self._passed_over(feed, epoch + 1, counts=counts):
            return None if feed.schedule.over else feed
        return None if self._span.left == 0 else self.iterated(each=True)

    def next_run(self) -> Feed:
        """The feed for a loop that begins a run; what is left of the present one is passed over."""
        feed = self.iterated()
        counts = feed.counts
        if feed.take() is not None:
            self._passed_over(feed, feed.schedule.first + (self.options.epochs or 1), counts=counts)
        return self.iterated()

    @property
    def sized(self) -> bool:
        """Whether the length of an epoch is known, though not always the number of its batches."""
        return isinstance(self.kind, IndexedSource)

    @cached_property
    def run_batches(self) -> int | None:
        """Batches of every run that a loop takes from its beginning, where that is known."""
        records, size = self._epoch_records, self.options.batch_size or 1
        if records is None:
            return None
        return (
            (records + (size - 1 if self.options.last_batch == "keep" else 0))
            // size
            * (self.options.epochs or 1)
        )

    @cached_property
    def _epoch_records(self) -> int | None:
        """Records of every epoch, where each has as many and none is left out."""
        skips = self.options.on_error == "skip" or self.options.on_worker_death != "raise"
        return (
            None if skips or not isinstance(self.kind, IndexedSource) else self.kind.epoch_records
        )

    def say_lengths(self) -> None:
        """Has every batch become (batch, lengths), as lengths=True does. Raises OptionError for a
        source of batches and without pad=, StateError after the start."""
        if self.options.lengths:
            return
        if not (self.kind.records and self.options.padded):
            raise OptionError(
                "ragged=True: needed single records (records=True, batch_size=32) and pad=True, "
                "which allows their shape to vary"
            )
        if self.feed is not None:
            raise StateError("a ragged dataset after the start: say FeedRunner(..., lengths=True)")
        self.options = replace(self.options, lengths=True)

    def share(self, other: Stream) -> None:
        """Has the workers of this one make the batches of another one, too; OptionError for one
        that ends for good."""
        if not other.kind.again:
            raise OptionError(
                "also() of an iterator, which ends for good: pass the function that makes it, or "
                "an object with len() and [index]"
            )
        other._leader = self
        self._followers.append(weakref.ref(other))

    def stop_followers(self) -> None:
        """Ends the feeds whose workers these are, for good."""
        # before anything that takes time: whoever starts a feed just now looks at it afterwards
        self._stopped = True
        for follower in filter(None, (ref() for ref in self._followers)):
            if follower.feed is not None:
                follower.feed.stop(0)
                follower.unwatch()

    def snapshot(self) -> Snapshot:
        """What every stage has done until now; StateError before anything was started."""
        feed = self.feed
        if feed is None:
            raise StateError(
                "snapshot() before anything was started: call start() or iter(), or begin the loop"
            )
        return feed.snapshot() if self.of_session is None else self.of_session()

    def unwatch(self) -> None:
        """Nobody need look at the feed any more."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.end()

    @property
    def followers(self) -> int:
        """How many share the workers."""
        return len(self._followers)

    @property
    def shares(self) -> bool:
        """Whether the workers are another one's."""
        return self._leader is not None

    def state(self, position: dict[str, Any] | None = None) -> dict[str, Any]:
        """Where the consumer is, unless `position` says it better."""
        if position is None:
            position = self.feed.state() if self.feed is not None else _at(self._span)
        return saved(position, seed=self.seed, of=self._fingerprint, streams=self._span.streams)

    def restore(self, state: dict[str, Any]) -> None:
        """Begins where `state` was saved. Raises StateError after the start, OptionError for
        another stream's state."""
        if self.feed is not None:
            raise StateError("restore() after the start: call it first, on a new FeedRunner")
        self._span, self.seed = restored(
            state, of=self._fingerprint, seed=self.options.seed, span=ResumePoint()
        )
        self.resumed = True
        warn_of_costs(self.kind, self._span, producers=self.options.producers)

    def _follow(self, workers: SharedWorkers) -> None:
        """The leader's workers are about to be started, perhaps for the second time: then this goes
        on where it is."""
        if self.feed is not None:
            self.feed.stop(0)
            self._span, _ = restored(
                self.state(), of=self._fingerprint, seed=None, span=ResumePoint()
            )
            self._let_go()
        self._for_loops(replace(self._span, per_run=self.options.epochs or 1, held=True), workers)

    @cached_property
    def batch_rows(self) -> int | None:
        """Records of every batch that a loop takes, where all have as many."""
        size, records = self.options.batch_size, self._epoch_records
        whole = self.options.last_batch == "drop" or (
            records is not None and size is not None and not records % size
        )
        return size if whole else None

    def _passed_over(self, feed: Feed, epoch: int, *, counts: tuple[int, int]) -> bool:
        """Has the next feed begin with `epoch`; true where the present one goes on, after what was
        left of it."""
        # its workers have other things to do, and are not started again for this
        if self._leader is not None:
            while feed.take() is not None:
                pass
            return True
        feed.stop()
        self._let_go()
        self._span = feed.schedule.from_epoch(epoch, counts)
        return False

    def _choose(self) -> None:
        """Says who augments, where that is to be measured."""
        if self.options.augment_on == AUTO:
            choice = choose(self._source, self.options, seed=self.seed)
            self.options = replace(self.options, augment_on=choice.on)
            self.choice = choice

    def _for_loops(self, span: ResumePoint, workers: SharedWorkers | None = None) -> Feed:
        self._choose()
        options, shuffle = self.options, self._record_shuffle()
        if shuffle is not None:
            if options.batch_size is None:
                raise OptionError(
                    f"shuffle={options.shuffle!r} draws records anew into batches: say "
                    "batch_size=, or shuffle=False"
                )
            stage = ShuffleStage(
                shuffle, options, seed=self.seed, epoch=span.epoch, state=span.pool
            )
            return self._new_feed(replace(span, starts=stage.again(span.starts)), stage, workers)
        cutter: Cutter | None = None
        if options.batch_size is not None:
            cutter = Rebatcher(options.batch_size, options.last_batch, pad=options.pad)
        elif options.order == "kept":  # else which batch is the last of an epoch is not known
            cutter = AsProduced(span.sizes)
        return self._new_feed(span, CutStage(cutter), workers)

    def _new_feed(
        self,
        span: ResumePoint,
        order: CutStage | ShuffleStage | None = None,
        workers: SharedWorkers | None = None,
    ) -> Feed:
        workers = workers or SharedWorkers()
        feed = Feed(
            self._source, self.options, seed=self.seed, resume=span, order=order, workers=workers
        )
        feed.warnings.share(self._said)
        self.feed = feed
        # A forgotten runner must not leave threads behind: they hold the feed, never the runner or
        # this.
        finalizer = Finalizer(feed)
        self._ending = weakref.finalize(self, finalizer.run)
        feed.call_on_failure(leaving(finalizer))
        try:
            if self._watch is None or self._watch.over:
                self._watch = observe(self, *filter(None, [self.options.metrics_target]))
            for follower in filter(None, (ref() for ref in self._followers)):
                follower._follow(workers)
            feed.start()
            self.refuse_stopped()
        except BaseException:  # nothing has begun: the next one who asks hears the same
            self.unwatch()
            feed.stop(0)
            self._let_go()
            raise
        return feed

    def refuse_stopped(self) -> None:
        """FeedStopped where the runner was stopped, from whatever thread."""
        if self._stopped:
            raise FeedStopped("this runner was stopped: make a new FeedRunner to go on")

    def _let_go(self) -> None:
        """The feed was stopped, and another one will follow."""
        self.feed = None
        if self._ending is not None:
            self._ending.detach()

    def _record_shuffle(self) -> Shuffle | None:
        shuffle = self.options.shuffle
        if shuffle is True:
            return None if isinstance(self.kind, IndexedSource) else Shuffle()
        return shuffle or None

    @cached_property
    def _fingerprint(self) -> dict[str, Any]:
        return fingerprint(self._source, self.kind, options=self.options)


def batches_of(stream: Stream, feed: Feed) -> Iterator[Any]:
    """A run's batches. Holds the stream, which nobody else may: `for batch in FeedRunner(source)`."""
    while True:
        # another one where the workers, which are another runner's, began anew
        feed = stream.feed or feed
        batch = feed.take()
        if batch is None:
            return
        yield feed.spec.rebuild(batch)


def new_seed() -> int:
    """A root seed for a run that states none."""
    return int(SeedSequence().generate_state(1)[0])


def _at(span: ResumePoint) -> dict[str, Any]:
    position = {
        **Position(span.epoch, span.starts, counts=span.counts).state(),
        "run_first": span.run_first,
    }
    return {
        **position,
        "sizes": {str(n): size for n, size in span.sizes.items()},
        "pool": span.pool,
    }
