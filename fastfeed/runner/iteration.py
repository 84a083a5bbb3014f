"""The iterations over a runner, over its epochs and by its sinks: only the newest takes batches."""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn

import numpy as np

from fastfeed.core.batch import Batch, BatchSpec
from fastfeed.engine.feed import Feed
from fastfeed.errors import FeedWarning, StateError
from fastfeed.runner.stream import Stream

LOCK_POLL_S = 0.1
SETTINGS = (bool, int, float, str)  # types of attributes by which a loop tells a data set something
REPLACED = (np.ndarray, list, tuple, dict, set)  # and of those that it replaces, such as labels


class Turn:
    """One iteration, which is in use for as long as this is referenced, unless it is `over`."""

    def __init__(self, number: int, older: Callable[[], Turn | None] | None) -> None:
        self.number = number
        # returns the iteration before, while that is referenced; None once this has a batch
        self.older = older
        self.over = False
        self.begun = False  # True from its first batch on


class Turns:
    """Gives batches to the newest iteration, one at a time, in any thread. An older one that is
    still in use gets StateError: each of them would get only some of the batches."""

    def __init__(self, sink: str, stream: Stream) -> None:
        self.sink = sink
        self._stream = stream
        # reentrant: an exception of a signal handler may come before the lock is released
        self.lock = threading.RLock()
        self._last: Callable[[], Turn | None] = lambda: None
        self._newest = 0  # the numbers of the last iteration, and of the loop over epochs around it
        self._around = 0
        self._attributes: dict[str, Any] = {}  # of the data set, at the last begin,
        self._shipped: Callable[[], Feed | None] = lambda: None  # of this feed

    def begin(self, within: Turn | None = None) -> Turn:
        """Begin an iteration, with its first batch; `within` a loop over epochs, which goes on."""
        goes_on = within is not None and self._last() is within
        turn = Turn(self._newest + 1, None if goes_on else self._last)
        self._last, self._newest = weakref.ref(turn), turn.number
        self._around = 0 if within is None else within.number
        return turn

    def _warn_of_changes(self) -> None:
        """Warn of attributes of the data set that the loop has set: copies in workers keep theirs,
        but where an on_epoch_end changes them."""
        source, feed = self._stream.source, self._stream.feed
        before, data = self._attributes, source.reader.data
        if not self._stream.options.workers or not hasattr(data, "__dict__"):
            return
        self._attributes = {
            name: value if type(value) in SETTINGS else id(value)
            for name, value in [*vars(data).items()]
            if type(value) in (*SETTINGS, *REPLACED)
        }
        if feed is None or feed is not self._shipped():  # its workers have got the present ones
            self._shipped = self._shipped if feed is None else weakref.ref(feed)
            return
        now = self._attributes
        changed = [k for k in now if now[k] != before.get(k, now[k]) and now[k] == now[k]]
        if changed and getattr(source, "ends", None) is None:
            warnings.warn(
                f"{', '.join(changed)} of {type(data).__name__} was changed, or replaced, between "
                "two loops, and the copies in worker processes keep what they have: use threads= "
                "without processes=, change it in an on_epoch_end, or make a new FeedRunner",
                FeedWarning,
                stacklevel=4,
            )

    def take(self, turn: Turn, take: Callable[[], Batch | None]) -> Batch | None:
        """Return `take()`. Raise StateError for an iteration that is not the newest, FeedStopped
        after the end of the runner."""
        if not self.lock.acquire(False):
            self._wait(turn)
        try:
            if turn.number != self._newest or self._stream.stopped:
                self.check(turn)
            batch = take()
            if batch is None or turn.older is not None:
                self._settle(turn, batch)
            if not turn.begun:
                turn.begun = True
                self._warn_of_changes()
            return batch
        finally:
            self.lock.release()

    def _wait(self, turn: Turn) -> None:
        """Acquire the lock. The thread that holds it may wait long for a batch. The garbage
        collector may make it wait for the thread of an older iteration, which must not block here
        for ever."""
        while not self.lock.acquire(timeout=LOCK_POLL_S):
            self.check(turn)

    def _settle(self, turn: Turn, batch: Batch | None) -> None:
        """Note the first batch of an iteration, or its end."""
        older = None if turn.older is None else turn.older()
        turn.older = None
        if batch is None:
            turn.over = True
            if older is not None and not older.over:  # it has left nothing
                self.superseded()

    def check(self, turn: Turn) -> None:
        """Raise what `take` raises."""
        self._stream.refuse_stopped()
        if turn.number not in (self._newest, self._around):
            self.superseded()

    def superseded(self) -> NoReturn:
        """Raise StateError for an older iteration that is still in use."""
        raise StateError(
            f"{self.sink} has two iterators at once, and the newer one has taken over: finish one "
            "iteration before the next begins, or make a second FeedRunner"
        )


def batches_of(stream: Stream, feed: Feed, *, turns: Turns) -> Iterator[Any]:
    """Yield the batches of a run. The generator may hold the only reference to the stream, as in
    `for batch in FeedRunner(source)`."""
    turn = turns.begin()
    take: Callable[[], Batch | None] = partial(_first, stream, feed)
    while True:
        batch = turns.take(turn, take)
        if batch is None:
            return
        feed = stream.feed or feed
        yield feed.spec.rebuild(batch)
        del batch  # its memory is free for the next one
        take = (stream.feed or feed).take


def _first(stream: Stream, feed: Feed) -> Batch | None:
    """Return the first batch of a loop. Where the loop before took the last batch of a run, and did
    not ask for more, that end is not the end of this one."""
    feed = stream.feed or feed  # replaced when shared workers were restarted
    begun = feed.counts > feed.schedule.resume.counts  # since a restore, whose end is one
    batch = feed.take()
    again = batch is None and begun and stream.source.repeatable
    return stream.current_feed().take() if again else batch


class Epoch:
    """The batches of one epoch, from `epochs()`. `number` counts from 0; `complete` is True once
    its end was reached."""

    def __init__(self, runner: Any, feed: Feed, *, turns: Turns, turn: Turn) -> None:
        schedule = feed.schedule
        # where an epoch has ended and the loop was not told, it comes once more, and is empty
        self.number = schedule.epoch - (schedule.paused and not schedule.told)
        self.complete = False  # True once its end was reached
        self._runner = runner  # the feed would end with the last reference to it
        self._feed = feed
        self._turns, self._turn = turns, turn  # of the loop over epochs

    def finish(self) -> bool:
        """End the epoch, so that it yields no more batches. Return True if it was complete."""
        before, self.complete = self.complete, True
        return before

    def __iter__(self) -> Iterator[Any]:
        """Yield batches as plain iteration does, after those of a loop that was left early."""
        if self.complete:
            return
        turn = self._turns.begin(self._turn)
        while (batch := self._turns.take(turn, self._take)) is not None:
            yield self._feed.spec.rebuild(batch)
            del batch  # its memory is free for the next one

    def _take(self) -> Batch | None:
        batch = None if self.complete else self._feed.take()
        self.complete = batch is None
        return batch


class IterationManager(Turns):
    """Iterations of one sink. Each is one run of the runner: `epochs=` epochs, or one.

    Over a source of known length every iteration begins at the beginning of a run; the rest of one
    that was left early is skipped. Over any other source the next iteration continues where the
    last one was left. The first batch claims the stream: raise StateError where it already feeds
    another sink.
    """

    def __init__(self, sink: str, stream: Stream) -> None:
        super().__init__(sink, stream)
        self._last_fed: EpochIterator | None = None  # the last one that has a feed
        self._spec: BatchSpec | None = None
        self._skips_end = False
        self._kept: list[Any] = []
        self._goes_on = False

    def skip_end(self) -> None:
        """Where a run was restored at its end, begin the next one: the framework counts them."""
        self._skips_end = True

    @property
    def spec(self) -> BatchSpec:
        """The spec of every batch. Starts the producers and waits for the first batch, which is
        delivered later. Raise what iteration raises."""
        with self.lock:
            if self._spec is None:
                self._stream.claim(self.sink)
                feed = self._stream.current_feed()
                feed.first()
                if self._skips_end:
                    feed.schedule.owe_end(False)
                self._spec = feed.spec
            return self._spec

    @property
    def lengths(self) -> bool:
        """True if batches are (batch, lengths)."""
        return self._stream.options.lengths

    @property
    def length(self) -> int | None:
        """Batches of every iteration, or None where that is unknown. The first one after a restore
        in the middle of a run has fewer."""
        return self._stream.run_batches

    @property
    def exact(self) -> bool:
        """True if `length` is certain: of ready batches, one without records is left out."""
        return self._stream.source.reader.records

    @property
    def resumed(self) -> bool:
        """True if the first iteration may be the rest of a run."""
        return self._stream.resumed

    @property
    def rows(self) -> int | None:
        """Records of every batch, or None where batches differ."""
        return None if self.resumed else self._stream.batch_rows

    @property
    def sharded(self) -> bool:
        """True if the batches are one rank's shard."""
        return self._stream.options.shard is not None

    def __iter__(self) -> EpochIterator:
        return EpochIterator(self)

    @property
    def ahead(self) -> bool:
        """True if a batch may be taken before the loop asks for it. Ranks that share out batches
        report one as consumed when the next is taken."""
        return not self._stream.options.stealing

    def mark(self) -> dict[str, Any]:
        """Return the position behind the batch that was taken last, for `give`."""
        return self._stream.mark()

    def give(self, mark: dict[str, Any] | None) -> None:
        """Note where the loop stands now; None: where batches are taken."""
        self._stream.given = mark

    def keep(self, results: list[Any]) -> None:
        """Keep what was made ahead of a loop that was left, also while the interpreter ends."""
        self._kept = results if self._goes_on else []

    def kept(self) -> list[Any]:
        """Return what an iteration begins with that goes on where the last one was left."""
        self._goes_on = not self._stream.sized
        found, self._kept = self._kept, []
        return found

    def refuse_stopped(self) -> None:
        """Raise FeedStopped if the runner was stopped."""
        self._stream.refuse_stopped()

    def take_first(self, feed: Feed) -> Batch | None:
        """Return the first batch of an iteration."""
        return feed.take() if self._stream.sized else _first(self._stream, feed)

    def feed_of(self, iterator: EpochIterator) -> Feed:
        """Return the feed of the newest iteration, which its first batch starts, and a restart of
        shared workers replaces."""
        if iterator.feed is not None:
            return self._stream.feed or iterator.feed
        self._stream.claim(self.sink)
        before, self._last_fed = self._last_fed, iterator
        left_early = before is not None and before.left_early
        sized = self._stream.sized
        feed = self._stream.next_run() if left_early and sized else self._stream.current_feed()
        if sized:
            feed.schedule.repeat()
        return feed


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
        if self._ended:
            return None
        if self.turn is None:
            self.turn = self._iterations.begin()
        return self._iterations.take(self.turn, self._next)

    def _next(self) -> Batch | None:
        start = time.thread_time()
        feed = self.feed = self._iterations.feed_of(self)
        iterations, first = self._iterations, not self._batches
        batch = iterations.take_first(feed) if first else feed.take()
        feed = self.feed = iterations.feed_of(self)
        if batch is None:
            self._ended = True
        else:
            self._batches += 1
        # nearly all of it with the interpreter lock: waiting for a batch takes no CPU
        feed.count_cpu(time.thread_time() - start)
        return batch

    def check(self) -> None:
        """Raise StateError if a newer iteration has begun, FeedStopped after the end of the
        runner."""
        if self.turn is not None:
            self._iterations.check(self.turn)
        self._iterations.refuse_stopped()

    @property
    def left_early(self) -> bool:
        """True if some batches were taken, but not all."""
        return self._batches > 0 and not self._ended

    def leave(self) -> None:
        """Note that the loop was left, although this is still referenced."""
        if self.turn is not None:
            self.turn.over = True
