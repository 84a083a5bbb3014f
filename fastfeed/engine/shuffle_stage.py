"""The stage that shuffles records: its pool, made with the first batch or restored from a state."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from fastfeed.core.batch import Batch
from fastfeed.core.position import ALL_DONE, FROM_THE_START, StreamStart
from fastfeed.engine.order_stage import INTERRUPTED, OrderStage
from fastfeed.engine.shuffle_pool import ShufflePool, check_room
from fastfeed.errors import StateError
from fastfeed.options import FeedOptions, Shuffle
from fastfeed.producers.reorder import ProducedBatch


class ShuffleStage(OrderStage):
    """Records in random order, drawn from a pool. The order of the items and of the draws decides
    what is drawn; their time does not."""

    shuffles = True

    def __init__(
        self,
        shuffle: Shuffle,
        options: FeedOptions,
        *,
        seed: int,
        epoch: int,
        state: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._shuffle = shuffle
        self._seed, self._epoch = seed, epoch
        self._pool: ShufflePool | None = None
        self._options = options
        self._ended_before = False  # the input of the first epoch ended before the state was saved
        if state is not None:
            self._pool = self._new_pool()
            self._pool.restore(state)
            self._ended_before = state["input"][1]

    def again(self, starts: dict[int, StreamStart]) -> dict[int, StreamStart]:
        """Return the starts with the items that are produced again because some of their records
        lie in the pool."""
        found = dict(starts)
        for stream, item in sorted(self._pool.missing if self._pool else ()):
            start = found.get(stream, FROM_THE_START)
            found[stream] = replace(start, again=(*start.again, item))
        return found

    def mark(self) -> dict[str, Any]:
        """Return the state: the pool forgets what it was."""
        return self.state()

    def state(self) -> dict[str, Any]:
        """Return the state of what was drawn: records of the next epoch count as not delivered.

        Raise StateError where an exception interrupted the shuffle.
        """
        if self._broken:
            raise StateError(INTERRUPTED)
        state = super().state()
        if self._pool is None or self._pool.finished:
            return state
        if state["epoch"] > self._pool.epoch:
            delivered = {"next": ALL_DONE, "done": [], "part": {}}
            streams = {str(stream): delivered for stream in self._streams}
            state = {**state, "epoch": self._pool.epoch, "streams": streams}
        return {**state, "pool": self._pool.state()}

    @property
    def _holds_epoch(self) -> bool:
        return self._pool is not None

    @property
    def _finished(self) -> bool:
        return self._pool is None or self._pool.finished

    @property
    def _dropped(self) -> int:
        return 0 if self._pool is None else self._pool.dropped

    def _wants(self, at_hand: bool) -> bool:
        if self._pool is None or self._pool.missing:
            return True
        return at_hand and self._pool.wants()

    def _take_in(self, batch: Batch | None, origin: ProducedBatch) -> None:
        """Take in the records of one item. Raise OptionError where the pool does not fit into
        memory=, StateError where an item that is produced again has fewer records than when the
        state was saved."""
        if self._pool is None and batch is not None:
            check_room(self._shuffle, batch, options=self._options)
            self._pool = self._new_pool()
        pool, key = self._pool, (origin.stream, origin.number)
        if pool is not None and key in pool.missing:
            if batch is None or not pool.place(batch, stream=key[0], item=key[1]):
                raise StateError(
                    f"item {key[1]} of its epoch has {batch.rows if batch else 0} records, fewer "
                    "than when the state was saved: the source must produce the records of the "
                    "shuffle pool as they were"
                )
            return
        if pool is not None and batch is not None:
            start = time.perf_counter()
            pool.push(batch, stream=key[0], item=key[1])
            self.shuffle_s += time.perf_counter() - start
        self._position.arrived(*key, rows=0)

    def _end_input(self, *, last: bool) -> None:
        self._position.end_epoch()
        if self._ended_before:
            self._ended_before = False
        elif self._pool is not None:
            self._pool.end_epoch()
        if last:
            self._flush()

    def _flush(self) -> None:
        if self._pool is not None:
            self._pool.end()

    def _draw(self) -> Batch | None:
        assert self._pool is not None
        start = time.perf_counter()
        batch = self._pool.draw()
        self.shuffle_s += time.perf_counter() - start
        return batch

    def _new_pool(self) -> ShufflePool:
        return ShufflePool(
            self._shuffle,
            batch_size=int(self._options.batch_size or 0),  # a loop that shuffles has one
            last_batch=self._options.last_batch,
            seed=self._seed,
            epoch=self._epoch,
            pad=self._options.pool_pad,
        )
