"""Passes over a runner, for sinks whose users iterate again and again: of these, only the newest goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from fastfeed.batch import Batch, BatchSpec
from fastfeed.errors import FeedStopped, StateError
from fastfeed.feed import Feed
from fastfeed.stream import Stream

if TYPE_CHECKING:
    from fastfeed.runner import FeedRunner


class Passes:
    """Each pass is one run of the runner: `epochs=` epochs, or one.

    A pass over a source whose length is known begins at the beginning, and what a pass that was left early had not
    taken is passed over; where nobody knows how much there is, the next pass goes on where the last one was left.
    """

    def __init__(self, stream: Stream, owner: FeedRunner, *, sink: str) -> None:
        self.sink = sink
        self._stream = stream
        self._owner = owner  # whose end would be the feed's
        self._lock = threading.Lock()
        self._newest: Pass | None = None
        self._spec: BatchSpec | None = None

    @property
    def spec(self) -> BatchSpec:
        """What every batch is; starts the producers and waits for the first batch, which is delivered later.

        Raises what iteration raises.
        """
        with self._lock:
            if self._spec is None:
                self.refuse_stopped()
                feed = self._stream.iterated()
                feed.first()
                self._spec = feed.spec
            return self._spec

    def say_lengths(self) -> None:
        """Has every batch become (batch, lengths). Raises OptionError without pad=, StateError after the start."""
        self._stream.say_lengths()

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

    def __iter__(self) -> Pass:
        return Pass(self)

    def take(self, of: Pass) -> Batch | None:
        """The next batch of a pass, or None behind its last one."""
        with self._lock:
            self.refuse_stopped()
            if of.feed is None:
                of.feed = self._begin()
                if self.length is not None:
                    of.feed.runs.repeat()
                self._newest = of
            elif of is not self._newest:
                self.superseded()
            start = time.thread_time()
            try:
                return of.feed.take()
            finally:  # mostly with the interpreter lock: the wait for a batch is without it, and on no core
                of.feed.consumed.cpu_s += time.thread_time() - start

    def superseded(self) -> NoReturn:
        """Refuses an older iterator that goes on."""
        raise StateError(
            f"{self.sink} is iterated by two iterators at once, and the newer one has taken over: finish one pass "
            "before the next begins, or make a second FeedRunner"
        )

    def _begin(self) -> Feed:
        left = self._newest is not None and self._newest.taken and not self._newest.over
        return self._stream.next_run() if left and self._stream.run_batches is not None else self._stream.iterated()

    def refuse_stopped(self) -> None:
        if self._owner.stopped:
            raise FeedStopped("this runner was stopped: make a new FeedRunner to go on")


class Pass(Iterator[Any]):
    """The batches of one pass, as the runner gives them. It begins when the first one is asked for."""

    def __init__(self, passes: Passes) -> None:
        self.feed: Feed | None = None
        self.taken = 0  # batches
        self.over = False
        self._passes = passes

    def take(self) -> Batch | None:
        """The next batch, out of its containers; None at the end and ever after."""
        batch = None if self.over else self._passes.take(self)
        self.over = batch is None
        self.taken += not self.over
        return batch

    def __next__(self) -> Any:
        batch = self.take()
        if batch is None or self.feed is None:
            raise StopIteration
        return self.feed.spec.rebuild(batch)
