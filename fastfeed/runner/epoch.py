"""One epoch of a runner, as an iterable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastfeed.core.batch import Batch
from fastfeed.engine.feed import Feed
from fastfeed.runner.turns import Turn, Turns


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
