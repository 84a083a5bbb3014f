"""The shuffle of a session in a numpy pool, so that the queue in the graph moves whole batches.

A RandomShuffleQueue copies each record twice, into separate memory, while it holds its lock.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NoReturn

from fastfeed.core.batch import Batch, BatchSpec
from fastfeed.engine.feed import Feed
from fastfeed.engine.order_stage import never_filled
from fastfeed.engine.shuffle_pool import ShufflePool, Slots, check_room
from fastfeed.engine.stage import Stage
from fastfeed.errors import FeedError, StateError
from fastfeed.options import Shuffle

# numpy releases the interpreter lock in calls on more than a few hundred elements, and then waits
# for the training loop to get it again, so small batches are copied several at a time.
MAX_AT_ONCE, MAX_AT_ONCE_NBYTES = 8, 2**21
COPY_THREAD_NBYTES = 2**20  # above this size a copy takes longer than a switch of threads


class SessionShuffle(Stage):
    """The records of a feed, shuffled, in batches of `size`; `first` is the feed's first batch.

    The pool mixes the end of each epoch with the start of the next, as a queue does. If the source
    is ahead, several small batches are copied at once, for which up to half of the room between
    min_after_dequeue and capacity is not drawn from. Otherwise each step gets its batch as soon as
    the records are there. Packed records, which are small, are shuffled before DALI decodes them.

    Raise OptionError if the pool does not fit the batch or the memory.
    """

    def __init__(self, feed: Feed, shuffle: Shuffle, *, first: Batch, size: int, seed: int) -> None:
        options = feed.options
        check_room(shuffle, first, options=options)
        nbytes = size * max(1, first.nbytes // first.rows)
        alone = options.padded or options.packed  # each is padded to its largest record
        room = (shuffle.capacity - shuffle.min_after_dequeue) // (2 * size)
        most = min(MAX_AT_ONCE, MAX_AT_ONCE_NBYTES // nbytes, room)
        self.at_once = 1 if alone else max(1, most)
        self._fresh = not any(feed.counts)
        self._size = size
        self._drawn: deque[Batch] = deque()  # copied, and not taken
        self._chosen: list[Slots] = []  # not copied yet
        # of the chosen batches, if another thread copies
        self._copy_task: Future[list[Batch]] | None = None
        self._failure: FeedError | None = None  # of the stage before, while batches are drawn
        self.copier_cpu_s = 0.0  # of the copying thread
        self._pool = ShufflePool(
            shuffle,
            batch_size=size,
            last_batch=options.last_batch,
            seed=seed,
            pad=options.pool_pad,
        )
        self._pool.draw_together(self.at_once)
        in_thread = nbytes >= COPY_THREAD_NBYTES and not alone
        self._copier = ThreadPoolExecutor(1, "fastfeed-shuffle") if in_thread else None

    def take(self) -> Batch | None:
        """Return the next batch, or None after the last.

        A separate thread copies large batches out while the next ones are copied in.
        """
        if not self._drawn:
            if not self._chosen:
                self._choose(wait=True)
            batches = self._draw()
            if not batches:
                # a run that is resumed near its end may have few records
                if self._fresh and self._pool.dropped:
                    raise never_filled(self._pool.dropped, self._size)
                return None
            self._fresh = False
            self._drawn.extend(batches)
            self._choose(wait=False)
        return self._drawn.popleft()

    @property
    def spec(self) -> BatchSpec:
        """The spec of the batches of the feed."""
        return self._before.spec

    @property
    def ready(self) -> bool:
        """True if batches are drawn, or more comes from the feed."""
        return bool(self._drawn) or self._before.ready

    @property
    def has_drawn(self) -> bool:
        """True if `take` returns a batch that was drawn together with the last one."""
        return bool(self._drawn)

    @property
    def depth(self) -> int:
        """Batches in the pool, and drawn from it."""
        return self._pool.held // self._size + len(self._drawn)

    @property
    def ended(self) -> bool:
        """True if every record was taken."""
        return self._pool.finished and not self._drawn

    def state(self) -> NoReturn:
        """Raise StateError."""
        raise StateError(
            "state() of a session whose queue shuffles: which records it has given is unknown. "
            "Set shuffle=True for an indexable (which is shuffled by index) or shuffle=False"
        )

    def close(self) -> None:
        """End the thread, if there is one."""
        if self._copier is not None:
            self._copier.shutdown(cancel_futures=True)

    def _choose(self, *, wait: bool) -> None:
        """Choose the next batches, and begin to copy them; without `wait` only in another thread,
        and only if the records are there."""
        if wait:
            while self._pool.wants():
                self._push()
            self._push_what_is_ready()
        elif self._copier is None or self._pool.wants():
            return
        self._chosen = self._pool.choose()
        if self._chosen and self._copier is not None:
            self._copy_task = self._copier.submit(self._copy_in_thread, self._chosen)

    def _draw(self) -> list[Batch]:
        """Return copies of the batches that were chosen."""
        if self._copy_task is None:
            batches = self._pool.copy(self._chosen)
        else:
            self._push_what_is_ready()
            batches = self._copy_task.result()
        self._pool.give_back(self._chosen)
        self._chosen, self._copy_task = [], None
        return batches

    def _copy_in_thread(self, chosen: list[Slots]) -> list[Batch]:
        batches = self._pool.copy(chosen)
        self.copier_cpu_s = time.thread_time()
        return batches

    def _push_what_is_ready(self) -> None:
        try:
            while self._failure is None and self._pool.has_room and self._before.ready:
                self._push()
        except FeedError as error:
            self._failure = error

    def _push(self) -> None:
        if self._failure is not None:
            raise self._failure
        batch = self._before.take()
        if batch is None:
            self._pool.end()
        else:
            self._pool.push(batch)
