"""The shuffle of a session in a numpy pool, so that the queue in the graph moves whole batches.

A RandomShuffleQueue copies each record twice, into separate memory, while it holds its lock.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from fastfeed.core.batch import Batch
from fastfeed.engine.feed import Feed
from fastfeed.engine.shuffle import ShufflePool
from fastfeed.engine.shuffle.storage import Slots
from fastfeed.errors import FeedError, OptionError
from fastfeed.options import Shuffle

LOG = logging.getLogger("fastfeed")
# numpy releases the interpreter lock in calls on more than a few hundred elements, and then waits
# for the training loop to get it again, so small batches are copied several at a time.
MAX_AT_ONCE, MAX_AT_ONCE_NBYTES = 8, 2**21
COPY_THREAD_NBYTES = 2**20  # above this size a copy takes longer than a switch of threads


class SessionShuffle:
    """The records of a feed, shuffled, in batches of `size`; `first` is the feed's first batch.

    The pool mixes the end of each epoch with the start of the next, as a queue does. If the source
    is ahead, several small batches are copied at once, for which up to half of the room between
    min_after_dequeue and capacity is not drawn from. Otherwise each step gets its batch as soon as
    the records are there.

    Raise OptionError if the pool does not fit the batch or the memory.
    """

    def __init__(self, feed: Feed, shuffle: Shuffle, *, first: Batch, size: int, seed: int) -> None:
        options = feed.options
        record_nbytes = max(1, first.nbytes // first.rows)
        self._feed = feed
        self._size = size
        self._drawn: deque[Batch] = deque()  # copied, and not taken
        self._chosen: list[Slots] = []  # not copied yet
        self._copy_task: Future[list[Batch]] | None = (
            None  # of the chosen batches, if another thread copies
        )
        self.copier_cpu_s = 0.0  # of the copying thread
        # shuffles packed records, which are small, before DALI decodes them
        self._dali = feed.detach_dali()
        self.at_once = _batches_at_once(
            shuffle, size, nbytes=size * record_nbytes, padded=options.padded or options.packed
        )
        self._pool = ShufflePool(
            shuffle,
            batch_size=size,
            last_batch=options.last_batch,
            seed=seed,
            pad=options.pool_pad,
        )
        self._pool.draw_together(self.at_once)
        in_thread = size * record_nbytes >= COPY_THREAD_NBYTES and not (
            options.padded or options.packed
        )
        self._copier = ThreadPoolExecutor(1, "fastfeed-shuffle") if in_thread else None
        nbytes = shuffle.capacity * record_nbytes
        if nbytes > options.memory_nbytes:
            raise OptionError(
                f"{shuffle.capacity} records of {record_nbytes} bytes do not fit into the "
                f"{options.memory_nbytes} bytes that batches in flight may take: choose a smaller "
                "shuffle=Shuffle(capacity=..., min_after_dequeue=...), or raise memory="
            )
        LOG.info("the shuffle pool takes %.1f MB: %d records", nbytes / 1e6, shuffle.capacity)

    @property
    def depth(self) -> int:
        """Batches in the pool, and drawn from it."""
        return self._pool.held // self._size + len(self._drawn)

    @property
    def has_drawn(self) -> bool:
        """True if the next batch of `augmented_take` is ready and needs no DALI."""
        return bool(self._drawn) and self._dali is None

    @property
    def dropped(self) -> int:
        """Records that did not fill a batch."""
        return self._pool.dropped

    def augmented_take(self) -> Batch | None:
        """Return the next batch, augmented if DALI does that; None after the last."""
        if self._dali is None:
            return self.take()
        from fastfeed.engine.dali_stage import drive

        return drive(self._dali, self._packed, at_hand=self._is_ready)

    def take(self) -> Batch | None:
        """Return the next batch, or None after the last.

        A separate thread copies large batches out while the next ones are copied in.
        """
        if not self._drawn:
            if not self._chosen:
                self._choose(wait=True)
            batches = self._draw()
            if not batches:
                return None
            self._drawn.extend(batches)
            self._choose(wait=False)
        return self._drawn.popleft()

    def close(self) -> None:
        """End the thread, if there is one."""
        if self._copier is not None:
            self._copier.shutdown(cancel_futures=True)

    def _packed(self) -> tuple[Batch, None] | None:
        batch = self.take()
        return None if batch is None else (batch, None)

    def _is_ready(self) -> bool:
        return bool(self._drawn) or self._feed.ready

    def _choose(self, *, wait: bool) -> None:
        """Choose the next batches, and begin to copy them; without `wait` only in another thread,
        and only if the records are there."""
        if wait:
            self._fill()
        elif self._copier is None or self._pool.wants():
            return
        if not self._pool.finished:
            self._chosen = self._pool.choose()
        if self._chosen and self._copier is not None:
            self._copy_task = self._copier.submit(self._copy_in_thread, self._chosen)

    def _draw(self) -> list[Batch]:
        """Return copies of the batches that were chosen."""
        if self._copy_task is None:
            batches = self._pool.copy(self._chosen)
        else:
            self._fill_from_what_is_ready()
            batches = self._copy_task.result()
        self._pool.give_back(self._chosen)
        self._chosen, self._copy_task = [], None
        return batches

    def _copy_in_thread(self, chosen: list[Slots]) -> list[Batch]:
        batches = self._pool.copy(chosen)
        self.copier_cpu_s = time.thread_time()
        return batches

    def _fill(self) -> None:
        while self._pool.wants() or (self._pool.has_room and self._feed.ready):
            self._push()

    def _fill_from_what_is_ready(self) -> None:
        with contextlib.suppress(FeedError):  # the next `take` of the feed raises it again
            while self._pool.has_room and self._feed.ready:
                self._push()

    def _push(self) -> None:
        batch = self._feed.take()
        if batch is None:
            self._pool.end()
        else:
            self._pool.push(batch)


def _batches_at_once(shuffle: Shuffle, size: int, *, nbytes: int, padded: bool) -> int:
    """Return how many batches of `nbytes` may be copied at once. It is one for padded batches, each
    of which is padded to its largest record."""
    room = shuffle.capacity - shuffle.min_after_dequeue
    return (
        1 if padded else max(1, min(MAX_AT_ONCE, MAX_AT_ONCE_NBYTES // nbytes, room // (2 * size)))
    )
