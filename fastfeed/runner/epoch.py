"""One epoch of a runner, as an iterable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastfeed.engine.feed import Feed


class Epoch:
    """The batches of one epoch, from `epochs()`; `number` counts from 0."""

    def __init__(self, runner: Any, feed: Feed) -> None:
        schedule = feed.schedule
        # where an epoch has ended and the loop was not told, it comes once more, and is empty
        self.number = schedule.epoch - (schedule.paused and not schedule.told)
        self.complete = False  # True once its end was reached
        self._runner = runner  # the feed would end with the last reference to it
        self._feed = feed

    def finish(self) -> bool:
        """End the epoch, so that it yields no more batches. Return True if it was complete."""
        before, self.complete = self.complete, True
        return before

    def __iter__(self) -> Iterator[Any]:
        """Yield batches as plain iteration does, after those of a loop that was left early."""
        while not self.complete:
            batch = self._feed.take()
            if batch is None:
                self.complete = True
            else:
                yield self._feed.spec.rebuild(batch)
