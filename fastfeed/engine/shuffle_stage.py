"""The record-level shuffle as a stage of a feed: its pool, made with the first batch, and made
again from a state."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fastfeed.core.batch import Batch
from fastfeed.core.position import DONE, FROM_THE_START, Start
from fastfeed.errors import OptionError, StateError
from fastfeed.options import FeedOptions, Shuffle
from fastfeed.producers.reorder import ProducedBatch
from fastfeed.shuffle import ShufflePool
from fastfeed.shuffle.storage import packed

LOG = logging.getLogger("fastfeed")
Key = tuple[int, int]  # stream and item
AMIDST = "an exception came amidst the shuffle, and nobody knows which records are where: restore a state saved before"


class ShuffleStage:
    """`push` while `wants`, else `draw`; the order of both decides what is drawn, their time does
    not."""

    def __init__(
        self,
        shuffle: Shuffle,
        options: FeedOptions,
        *,
        seed: int,
        epoch: int,
        state: dict[str, Any] | None = None,
    ) -> None:
        self._shuffle = shuffle
        self._options = options
        self._seed = seed
        self._epoch = epoch
        self._pool: ShufflePool | None = None
        self._missing: set[Key] = set()
        self._kept: deque[tuple[ProducedBatch, Batch]] = deque()  # came before all that was missing
        # hears of what has come into the pool
        self.had: Callable[[int, int], None] = lambda stream, item: None
        self._begun: object = None  # the last thing that changes the pool
        self._done: object = None  # and the last one that came to its end: the same, or all is lost
        self._ended_before = False  # the input of the first epoch, before the state was saved
        if state is not None:
            self._restore(state)

    def again(self, starts: dict[int, Start]) -> dict[int, Start]:
        """The starts with the items that must be made again, because some of their records lie in
        the pool."""
        found = dict(starts)
        for stream, item in sorted(self._missing):
            start = found.get(stream, FROM_THE_START)
            found[stream] = replace(start, again=(*start.again, item))
        return found

    @property
    def empty(self) -> bool:
        """Whether there never was a record."""
        return self._pool is None

    def wants(self, may_read: bool) -> bool:
        """Whether something is to be pushed before the next draw; `may_read`: whether there is more
        to come now."""
        if self._pool is None or self._missing:
            return True
        while self._kept and self._pool.wants():
            made, batch = self._kept[0]
            self._begin(made)
            self._mix(self._pool, made, batch=batch)
            self._kept.popleft()
            self._done = made
        return may_read and self._pool.wants()

    def push(self, made: ProducedBatch, batch: Batch | None) -> None:
        """Takes in the records of one item; None where it has none. The same one again at once
        changes nothing."""
        if made is self._done:
            return
        self._begin(made)
        if batch is None:
            self._refuse_less(made, 0)
            self.had(made.stream, made.number)
        else:
            self._take_in(made, batch)
        self._done = made

    def end_epoch(self) -> None:
        """The input of an epoch has ended."""
        if self._ended_before:
            self._ended_before = False
        elif self._pool is not None:
            self._pool.end_epoch()

    def end(self) -> None:
        """There is no more input."""
        if self._pool is not None:
            self._pool.end()

    def draw(self) -> Batch | None:
        """A batch, or None where an epoch ends; the same until `given` says that somebody has it,
        or `turn`."""
        assert self._pool is not None
        self._refuse_amidst()
        return self._pool.draw()

    def turn(self) -> bool:
        """The end of an epoch is about to be passed on, until `given` says that it was; whether it
        was the last."""
        assert self._pool is not None
        self._begin(object())
        self._pool.turn()
        return self._pool.finished

    def given(self) -> None:
        """What was drawn has been handed out."""
        assert self._pool is not None
        self._pool.given()
        self._done = self._begun

    @property
    def dropped(self) -> int:
        """Records that were left out, because they did not fill a batch."""
        return 0 if self._pool is None else self._pool.dropped

    @property
    def finished(self) -> bool:
        """Whether everything was drawn."""
        return self._pool is not None and self._pool.finished

    def state(
        self, position: dict[str, Any], *, streams: list[int], pack: Callable[[Any], Any] = packed
    ) -> dict[str, Any]:
        """The position of what was drawn, out of that of what was pushed: records of the epoch
        after it count as not had, and so does what has come too early."""
        self._refuse_amidst()
        if self._pool is None or self._pool.finished:
            return {**position, "pool": None}
        pool = self._pool.state(pack)
        pool["epochs"], pool["origins"], pool["over"] = (
            pool["epochs"][:1],
            pool["origins"][:1],
            False,
        )
        if position["epoch"] > self._pool.epoch:
            all_had = {"next": DONE, "done": [], "part": {}}
            position = {
                **position,
                "epoch": self._pool.epoch,
                "streams": {str(s): all_had for s in streams},
            }
        return {**position, "pool": pool}

    def _take_in(self, made: ProducedBatch, batch: Batch) -> None:
        if self._pool is None:
            self._pool = self._new_pool(batch)
        if (made.stream, made.number) in self._missing:
            self._place(made, batch)
        elif self._missing:
            self._kept.append((made, batch))
        else:
            self._mix(self._pool, made, batch=batch)

    def _new_pool(self, batch: Batch) -> ShufflePool:
        options = self._options
        nbytes = self._shuffle.capacity * batch.nbytes // batch.rows
        if nbytes > options.memory_nbytes:
            raise OptionError(
                f"a shuffle pool of {self._shuffle.capacity} records of "
                f"{batch.nbytes // batch.rows} bytes does not fit into the {options.memory_nbytes} "
                "bytes that batches in flight may take: choose a smaller "
                "shuffle=Shuffle(capacity=..., min_after_dequeue=...), or raise memory="
            )
        LOG.info("the shuffle pool takes %.1f MB: %d records", nbytes / 1e6, self._shuffle.capacity)
        return ShufflePool(
            self._shuffle,
            batch_size=int(options.batch_size or 0),  # a loop that shuffles has one
            last_batch=options.last_batch,
            seed=self._seed,
            epoch=self._epoch,
            pad=options.pool_pad,
        )

    def _restore(self, state: dict[str, Any]) -> None:
        options = self._options
        self._pool = ShufflePool.restored(
            state,
            self._shuffle,
            batch_size=int(options.batch_size or 0),
            last_batch=options.last_batch,
            seed=self._seed,
            pad=options.pool_pad,
        )
        self._missing = {(origin.stream, origin.item) for origin in self._pool.missing()}
        self._ended_before = bool(state["epochs"] and state["epochs"][0][1])

    def _place(self, made: ProducedBatch, batch: Batch) -> None:
        assert self._pool is not None
        self._pool.place(batch, stream=made.stream, item=made.number, of_next=False)
        self._missing.remove((made.stream, made.number))
        if any(
            (origin.stream, origin.item) == (made.stream, made.number)
            for origin in self._pool.missing()
        ):
            self._missing.add((made.stream, made.number))
            self._refuse_less(made, batch.rows)

    def _mix(self, pool: ShufflePool, made: ProducedBatch, *, batch: Batch) -> None:
        pool.push(batch, stream=made.stream, item=made.number)
        self.had(made.stream, made.number)

    def _begin(self, what: object) -> None:
        self._refuse_amidst()
        self._begun = what

    def _refuse_amidst(self) -> None:
        if self._begun is not self._done:
            raise StateError(AMIDST)

    def _refuse_less(self, made: ProducedBatch, rows: int) -> None:
        if (made.stream, made.number) in self._missing:
            raise StateError(
                f"item {made.number} of its epoch has {rows} records, and had more when the state "
                "was saved: the records in the shuffle pool must be made again as they were"
            )
