"""The stage that shuffles records: its pool, made with the first batch or restored from a state."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fastfeed.core.batch import Batch
from fastfeed.core.position import ALL_DONE, FROM_THE_START, Position, StreamStart
from fastfeed.engine.shuffle import ShufflePool
from fastfeed.engine.shuffle.storage import pack_origins
from fastfeed.engine.stage import Stage
from fastfeed.errors import OptionError, StateError
from fastfeed.options import FeedOptions, Shuffle
from fastfeed.producers.reorder import ProducedBatch

LOG = logging.getLogger("fastfeed")
Key = tuple[int, int]  # stream and item
INTERRUPTED_SHUFFLE = (
    "an exception interrupted the shuffle, and which records were delivered is unknown: restore a "
    "state that was saved before"
)


class ShuffleStage(Stage):
    """Records in random order, drawn from a pool. The order of `take_in` and `pop` decides what is
    drawn; their time does not."""

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
        self._shuffle = shuffle
        self._options = options
        self._seed = seed
        self._epoch = epoch
        self._pool: ShufflePool | None = None
        self._missing: set[Key] = set()
        self._early: deque[tuple[ProducedBatch, Batch]] = deque()  # arrived before a missing item
        self.ready: deque[Batch] = deque()  # drawn, and put back
        self._position = Position(epoch)
        self._streams: Sequence[int] = ()
        # The last item or epoch that began to change the pool, and the last one that was completed.
        # Where they differ, an exception interrupted a change and the pool is lost.
        self._begun: object = None
        self._done: object = None
        self._drawing = False  # True during a draw
        self._ended_before = False  # the input of the first epoch ended before the state was saved
        if state is not None:
            self._restore(state)

    def bind(self, position: Position, streams: Sequence[int]) -> None:
        """Record in `position` what arrives from these streams, before the first `take_in`."""
        self._position, self._streams = position, streams

    def again(self, starts: dict[int, StreamStart]) -> dict[int, StreamStart]:
        """Return the starts with the items that are produced again because some of their records
        lie in the pool."""
        found = dict(starts)
        for stream, item in sorted(self._missing):
            start = found.get(stream, FROM_THE_START)
            found[stream] = replace(start, again=(*start.again, item))
        return found

    @property
    def holds_epoch(self) -> bool:
        """True if records of an epoch are left when its input ends: once there is a pool."""
        return self._pool is not None

    def wants(self, at_hand: bool) -> bool:
        """Return True if the pool needs records before the next draw. `at_hand`: more will come in
        this run."""
        if self.ready:
            return False
        if self._pool is None or self._missing:
            return True
        while self._early and self._pool.wants():
            made, batch = self._early[0]
            self._begin(made)
            self._mix(self._pool, made, batch=batch)
            self._early.popleft()
            self._done = made
        return at_hand and self._pool.wants()

    def take_in(self, batch: Batch | None, origin: ProducedBatch) -> None:
        """Take in the records of one item. A second call with the same item changes nothing.

        Raise OptionError where the pool does not fit into memory=, StateError where an item that is
        produced again has fewer records than when the state was saved.
        """
        if origin is self._done:
            return
        self._begin(origin)
        if batch is None:
            self._refuse_less(origin, 0)
            self._position.arrived(origin.stream, origin.number, rows=0)
        else:
            self._add(origin, batch)
        self._done = origin

    def end_epoch(self, *, last: bool) -> None:
        """Note the end of an epoch's input."""
        self._position.end_epoch()
        if self._ended_before:
            self._ended_before = False
        elif self._pool is not None:
            self._pool.end_epoch()
        if last:
            self.flush()

    def flush(self) -> None:
        """Let the pool run empty."""
        if self._pool is not None:
            self._pool.end()

    def pop(self) -> Batch | None:
        """Return a batch, or None where an epoch ends: the same again until `given` or `turn`."""
        if self.ready:
            return self.ready.popleft()
        assert self._pool is not None
        self._refuse_interrupted()
        self._drawing = True
        batch = self._pool.draw()
        self._drawing = False
        return batch

    def turn(self) -> bool:
        """Go on to the next epoch, where `pop` returned None; return True if there is none. `given`
        completes it."""
        assert self._pool is not None
        self._begin(object())
        self._pool.start_next_epoch()
        return self._pool.finished

    def given(self) -> None:
        """Note that the consumer has what `pop` returned."""
        assert self._pool is not None
        self._drawing = True
        self._pool.confirm()
        self._drawing, self._done = False, self._begun

    @property
    def dropped(self) -> int:
        """Records that were left out because they did not fill a batch."""
        return 0 if self._pool is None else self._pool.dropped

    @property
    def finished(self) -> bool:
        """True if every record was drawn."""
        return self._pool is not None and self._pool.finished

    def state(
        self, state: dict[str, Any], pack: Callable[[Any], Any] = pack_origins
    ) -> dict[str, Any]:
        """Return the state of what was drawn, given that of what was taken in: records of the next
        epoch, and those that arrived too early, count as not delivered.

        Raise StateError where an exception interrupted the shuffle.
        """
        self._refuse_interrupted()
        if self._pool is None or self._pool.finished:
            return {**state, "pool": None}
        pool = self._pool.state(pack)
        pool["epochs"], pool["origins"] = pool["epochs"][:1], pool["origins"][:1]
        pool["over"] = False
        if state["epoch"] > self._pool.epoch:
            delivered = {"next": ALL_DONE, "done": [], "part": {}}
            streams = {str(stream): delivered for stream in self._streams}
            state = {**state, "epoch": self._pool.epoch, "streams": streams}
        return {**state, "pool": pool}

    def _add(self, made: ProducedBatch, batch: Batch) -> None:
        if self._pool is None:
            self._pool = self._new_pool(batch)
        if (made.stream, made.number) in self._missing:
            self._place(made, batch)
        elif self._missing:
            self._early.append((made, batch))
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
        self._position.arrived(made.stream, made.number, rows=0)

    def _begin(self, what: object) -> None:
        self._refuse_interrupted()
        self._begun = what

    def _refuse_interrupted(self) -> None:
        if self._drawing or self._begun is not self._done:
            raise StateError(INTERRUPTED_SHUFFLE)

    def _refuse_less(self, made: ProducedBatch, rows: int) -> None:
        if (made.stream, made.number) in self._missing:
            raise StateError(
                f"item {made.number} of its epoch has {rows} records, fewer than when the state "
                "was saved: the source must produce the records of the shuffle pool as they were"
            )


def keep_origins(origins: Any) -> Any:
    """Keep the origins of a pool's records as arrays until a state is requested."""
    return origins
