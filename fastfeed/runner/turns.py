"""The iterations over one runner, and over its epochs: only the newest takes batches."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from fastfeed.core.batch import Batch
from fastfeed.errors import StateError

if TYPE_CHECKING:
    from fastfeed.engine.feed import Feed
    from fastfeed.runner.stream import Stream

LOCK_POLL_S = 0.1


class Turn:
    """One iteration, which is in use for as long as this is referenced, unless it is `over`."""

    def __init__(self, older: Callable[[], Turn | None]) -> None:
        self.older = older  # returns the iteration before, while that is referenced
        self.over = False


class Turns:
    """Gives batches to the newest iteration, one at a time, in any thread. An older one that is
    still in use gets StateError: each of them would get only some of the batches."""

    def __init__(self, sink: str, refuse_stopped: Callable[[], None]) -> None:
        self._sink = sink
        self.refuse_stopped = refuse_stopped
        # reentrant: an exception of a signal handler may come before the lock is released
        self.lock = threading.RLock()
        self._newest: Callable[[], Turn | None] = lambda: None
        self._around: Turn | None = None  # the loop over epochs that the newest is a part of

    def begin(self, within: Turn | None = None) -> Turn:
        """Begin an iteration, with its first batch; `within` a loop over epochs, which goes on."""
        older = self._newest
        turn = Turn((lambda: None) if within is not None and older() is within else older)
        self._newest, self._around = weakref.ref(turn), within
        return turn

    def take(self, turn: Turn, take: Callable[[], Batch | None]) -> Batch | None:
        """Return `take()`. Raise StateError for an iteration that is not the newest, FeedStopped
        after the end of the runner."""
        # The thread that holds the lock may wait long for a batch. The garbage collector may make
        # it wait for the thread of an older iteration, which must not block here for ever.
        while not self.lock.acquire(timeout=LOCK_POLL_S):
            self.check(turn)
        try:
            self.check(turn)
            batch, older = take(), turn.older()
            if batch is None:
                turn.over = True
                if older is not None and not older.over:  # it has left nothing
                    self.superseded()
            elif older is not None:
                turn.older = lambda: None
            return batch
        finally:
            self.lock.release()

    def check(self, turn: Turn) -> None:
        """Raise what `take` raises."""
        self.refuse_stopped()
        if turn is not self._newest() and turn is not self._around:
            self.superseded()

    def superseded(self) -> NoReturn:
        """Raise StateError for an older iteration that is still in use."""
        raise StateError(
            f"{self._sink} has two iterators at once, and the newer one has taken over: finish one "
            "iteration before the next begins, or make a second FeedRunner"
        )


def batches_of(stream: Stream, feed: Feed, *, turns: Turns) -> Iterator[Any]:
    """Yield the batches of a run. The generator may hold the only reference to the stream, as in
    `for batch in FeedRunner(source)`."""
    turn = turns.begin()
    while True:
        # replaced when shared workers were restarted
        feed = stream.feed or feed
        batch = turns.take(turn, feed.take)
        if batch is None:
            return
        yield feed.spec.rebuild(batch)
        del batch  # its memory is free for the next one


class Epoch:
    """The batches of one epoch, from `epochs()`; `number` counts from 0."""

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
