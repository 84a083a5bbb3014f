"""Iterations over a runner, for sinks that are iterated repeatedly; only the newest one
continues."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn

from fastfeed.core.batch import Batch, BatchSpec
from fastfeed.engine.feed import Feed
from fastfeed.runner.stream import Stream
from fastfeed.runner.turns import Turn, Turns


class IterationManager:
    """Iterations of one sink. Each is one run of the runner: `epochs=` epochs, or one.

    Over a source of known length every iteration begins at the beginning of a run; the rest of one
    that was left early is skipped. Over any other source the next iteration continues where the
    last one was left. `claim` is called before the first batch, and raises StateError where the
    runner already feeds another sink.
    """

    def __init__(self, stream: Stream, claim: Callable[[], None], *, sink: str) -> None:
        self.sink = sink
        self.lengths = False  # True: batches are (batch, lengths), for ragged tensors
        self._stream = stream
        self._claim = claim
        self._turns = Turns(sink, stream.refuse_stopped)
        self._last: EpochIterator | None = None  # to have a feed
        self._spec: BatchSpec | None = None
        self._skips_end = False

    def skip_end(self) -> None:
        """Where a run was restored at its end, begin the next one: the framework counts them."""
        self._skips_end = True

    @property
    def spec(self) -> BatchSpec:
        """The spec of every batch. Starts the producers and waits for the first batch, which is
        delivered later. Raise what iteration raises."""
        with self._turns.lock:
            if self._spec is None:
                self._claim()
                feed = self._stream.current_feed()
                feed.first()
                if self._skips_end:
                    feed.schedule.owe_end(False)
                self._spec = feed.spec
            return self._spec

    def add_lengths(self) -> None:
        """Deliver (batch, lengths) instead of batches. Raise OptionError where records have no
        varying lengths, StateError after the start."""
        self._stream.add_lengths()
        self.lengths = True

    @property
    def length(self) -> int | None:
        """Batches of every iteration, or None where that is unknown."""
        return None if self._stream.resumed else self._stream.run_batches

    @property
    def exact(self) -> bool:
        """True if `length` is certain: of ready batches, one without records is left out."""
        return self._stream.source.records

    @property
    def rows(self) -> int | None:
        """Records of every batch, or None where batches differ."""
        return None if self._stream.resumed else self._stream.batch_rows

    @property
    def sharded(self) -> bool:
        """True if the batches are one rank's shard."""
        return self._stream.options.shard is not None

    def __iter__(self) -> EpochIterator:
        return EpochIterator(self)

    def take(self, iterator: EpochIterator) -> Batch | None:
        """Return the next batch of an iteration, or None after its last one."""
        turn = iterator.turn or iterator.begin(self._turns.begin())
        return self._turns.take(turn, partial(self._next, iterator))

    def superseded(self) -> NoReturn:
        """Raise StateError for an older iterator that is still in use."""
        self._turns.superseded()

    def check(self, iterator: EpochIterator) -> None:
        """Raise StateError if a newer iteration has begun, FeedStopped if the runner was
        stopped."""
        if iterator.turn is not None:
            self._turns.check(iterator.turn)
        self.refuse_stopped()

    def refuse_stopped(self) -> None:
        """Raise FeedStopped if the runner was stopped."""
        self._stream.refuse_stopped()

    def _next(self, iterator: EpochIterator) -> Batch | None:
        start = time.thread_time()
        feed = self._feed_of(iterator)
        batch = feed.take()
        iterator.count(batch)
        # nearly all of it with the interpreter lock: waiting for a batch takes no CPU
        feed.count_cpu(time.thread_time() - start)
        return batch

    def _feed_of(self, iterator: EpochIterator) -> Feed:
        """Return the feed of the newest iteration, which its first batch starts, and a restart of
        shared workers replaces."""
        if iterator.feed is not None:
            return iterator.read_from(self._stream.feed or iterator.feed)
        self._claim()
        before, self._last = self._last, iterator
        left_early = before is not None and before.left_early
        sized = self._stream.sized
        feed = self._stream.next_run() if left_early and sized else self._stream.current_feed()
        if sized:
            feed.schedule.repeat()
        return iterator.read_from(feed)


class EpochIterator(Iterator[Any]):
    """The batches of one iteration, which begins with the request for the first one."""

    def __init__(self, iterations: IterationManager) -> None:
        self.feed: Feed | None = None
        self.turn: Turn | None = None
        self._iterations = iterations
        self._batches = 0
        self._ended = False

    def __next__(self) -> Any:
        batch = self.take()
        if batch is None or self.feed is None:
            raise StopIteration
        return self.feed.spec.rebuild(batch)

    def take(self) -> Batch | None:
        """Return the next batch without its containers; None at the end and ever after."""
        return None if self._ended else self._iterations.take(self)

    @property
    def left_early(self) -> bool:
        """True if some batches were taken, but not all."""
        return self._batches > 0 and not self._ended

    def begin(self, turn: Turn) -> Turn:
        """Set the turn, and return it."""
        self.turn = turn
        return turn

    def leave(self) -> None:
        """Note that the loop was left, although this is still referenced."""
        if self.turn is not None:
            self.turn.over = True

    def read_from(self, feed: Feed) -> Feed:
        """Set the feed, and return it."""
        self.feed = feed
        return feed

    def count(self, batch: Batch | None) -> None:
        """Count a batch that was taken; None marks the end."""
        if batch is None:
            self._ended = True
        else:
            self._batches += 1
