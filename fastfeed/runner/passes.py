"""Passes over a runner, for sinks whose users iterate again and again: of these, only the newest
goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from fastfeed.core.batch import Batch, BatchSpec
from fastfeed.engine.feed import Feed
from fastfeed.errors import StateError
from fastfeed.runner.stream import Stream

LOOK_UP_S = 0.1


class IterationManager:
    """Each pass is one run of the runner: `epochs=` epochs, or one.

    A pass over a source whose length is known begins at the beginning, and what a pass that was
    left early had not taken is passed over; where nobody knows how much there is, the next pass
    goes on where the last one was left. `claim` is called where the first batch is asked for, and
    raises where the runner has another taker.
    """

    def __init__(self, stream: Stream, claim: Callable[[], None], *, sink: str) -> None:
        self.sink = sink
        # whether every batch is (batch, lengths) for a sink that makes ragged tensors of it
        self.lengths = False
        self._stream = stream
        self._claim = claim
        self._lock = threading.Lock()
        self._newest: EpochIterator | None = None
        self._last: EpochIterator | None = None  # that had a batch
        self._spec: BatchSpec | None = None

    @property
    def spec(self) -> BatchSpec:
        """What every batch is; starts the producers and waits for the first batch, which is
        delivered later.

        Raises what iteration raises.
        """
        with self._lock:
            if self._spec is None:
                self._claim()
                feed = self._stream.iterated()
                feed.first()
                self._spec = feed.spec
            return self._spec

    def say_lengths(self) -> None:
        """Has every batch become (batch, lengths). Raises OptionError where there are none,
        StateError after the start."""
        self._stream.say_lengths()
        self.lengths = True

    @property
    def length(self) -> int | None:
        """Batches of every pass, where that is known."""
        return None if self._stream.resumed else self._stream.run_batches

    @property
    def rows(self) -> int | None:
        """Records of every batch, where all have as many."""
        return None if self._stream.resumed else self._stream.batch_rows

    @property
    def sharded(self) -> bool:
        """Whether the batches are one rank's of several."""
        return self._stream.options.shard is not None

    def __iter__(self) -> EpochIterator:
        return EpochIterator(self)

    def take(self, of: EpochIterator) -> Batch | None:
        """The next batch of a pass, or None behind its last one."""
        if not of.begun:
            of.begun, self._newest = True, of
        # Whoever has the lock may wait long, and the garbage collector may make it wait for the
        # thread of an older iterator: that one must not wait for the lock without looking up.
        while not self._lock.acquire(timeout=LOOK_UP_S):
            self._refuse(of)
        try:
            self._refuse(of)
            start = time.thread_time()
            feed = self._feed_of(of)
            batch = feed.take()
            of.over = batch is None
            of.taken += not of.over
            # Mostly with the interpreter lock: the wait for a batch is without it, and on no core.
            feed.count_cpu(time.thread_time() - start)
            return batch
        finally:
            self._lock.release()

    def superseded(self) -> NoReturn:
        """Refuses an older iterator that goes on."""
        raise StateError(
            f"{self.sink} is iterated by two iterators at once, and the newer one has taken over: "
            "finish one pass before the next begins, or make a second FeedRunner"
        )

    def refuse_stopped(self) -> None:
        """FeedStopped where the runner was stopped."""
        self._stream.refuse_stopped()

    def _refuse(self, of: EpochIterator) -> None:
        self.refuse_stopped()
        if of is not self._newest:
            self.superseded()

    def _feed_of(self, of: EpochIterator) -> Feed:
        """The feed of the newest pass, which begins where it has none; another one where the
        workers began anew."""
        if of.feed is None:
            self._claim()
            last, self._last = self._last, of
            left = last is not None and last.taken and not last.over
            of.feed = (
                self._stream.next_run() if left and self._stream.sized else self._stream.iterated()
            )
            if self._stream.sized:
                of.feed.schedule.repeat()
        of.feed = self._stream.feed or of.feed
        return of.feed


class EpochIterator(Iterator[Any]):
    """The batches of one pass, as the runner gives them. It begins when the first one is asked for."""

    def __init__(self, passes: IterationManager) -> None:
        self.feed: Feed | None = None
        self.begun = False
        self.taken = 0  # batches
        self.over = False
        self._passes = passes

    def take(self) -> Batch | None:
        """The next batch, out of its containers; None at the end and ever after."""
        return None if self.over else self._passes.take(self)

    def __next__(self) -> Any:
        batch = self.take()
        if batch is None or self.feed is None:
            raise StopIteration
        return self.feed.spec.rebuild(batch)
