"""One epoch of a runner, to be iterated over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastfeed.engine.feed import Feed


class Epoch:
    """The batches of one epoch, of `epochs()`; `number` counts from 0."""

    def __init__(self, runner: Any, feed: Feed) -> None:
        self.number = feed.schedule.epoch
        self.complete = False  # whether its end was reached
        self._runner = runner  # which would end the feed if nobody held it
        self._feed = feed

    def __iter__(self) -> Iterator[Any]:
        """Batches as in plain iteration; a loop that was left early goes on where it was."""
        while not self.complete:
            batch = self._feed.take()
            if batch is None:
                self.complete = True
            else:
                yield self._feed.spec.rebuild(batch)
