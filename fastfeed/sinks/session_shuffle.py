"""A session's shuffle: records pass a numpy pool of our own, so that the queue in the graph moves whole batches.

A RandomShuffleQueue copies record by record, in and out, each one into memory of its own, while it holds its lock.
"""

from __future__ import annotations

import logging
from collections import deque

from fastfeed.batch import Batch
from fastfeed.errors import OptionError
from fastfeed.feed import Feed
from fastfeed.options import Shuffle
from fastfeed.shuffle import BulkPool

LOG = logging.getLogger("fastfeed")
# Every call of numpy on more than a few hundred elements hands the interpreter lock to the training loop and waits for
# it again. Of 32 MNIST records that made 75 k records/s batch by batch (RandomShuffleQueue: 106 k), 122 k eight at a
# time.
AT_ONCE, AT_ONCE_NBYTES = 8, 2**21


class SessionShuffle:
    """The records of a feed, shuffled, in batches of `size`; `first` is the feed's first batch.

    To the pool a run is one epoch: the end of each is mixed with the start of the next, as in a queue. Where the source
    is ahead, several small batches are copied at once, for which up to half of the room between min_after_dequeue and
    capacity is not drawn from; else each step has its batch as soon as the records are there.

    Raises OptionError where the pool does not fit the batch or the memory.
    """

    def __init__(self, feed: Feed, shuffle: Shuffle, *, first: Batch, size: int, seed: int) -> None:
        options = feed.options
        record_nbytes = max(1, first.nbytes // first.rows)
        self._feed = feed
        self._size = size
        self._drawn: deque[Batch] = deque()  # and not taken
        # What is shuffled is small where DALI decodes it afterwards.
        self.augmented_take = self.take if feed.augmented is None else feed.augmented.behind(self.take, self._is_ready)
        self._pool = BulkPool(
            shuffle,
            batch_size=size,
            at_once=_at_once(shuffle, size, nbytes=size * record_nbytes, padded=options.padded or options.packed),
            last_batch=options.last_batch,
            seed=seed,
            pad=options.pool_pad,
        )
        nbytes = shuffle.capacity * record_nbytes
        if nbytes > options.memory_nbytes:
            raise OptionError(
                f"{shuffle.capacity} records of {record_nbytes} bytes do not fit into the {options.memory_nbytes} "
                "bytes that batches in flight may take: choose a smaller shuffle=Shuffle(capacity=..., "
                "min_after_dequeue=...), or raise memory="
            )
        LOG.info("the shuffle pool takes %.1f MB: %d records", nbytes / 1e6, shuffle.capacity)

    @property
    def depth(self) -> int:
        """Batches in the pool, and out of it."""
        return self._pool.held // self._size + len(self._drawn)

    @property
    def dropped(self) -> int:
        """Records that did not fill a batch."""
        return self._pool.dropped

    def take(self) -> Batch | None:
        """The next batch, or None where everything was drawn."""
        if not self._drawn:
            self._fill()
            if self._pool.finished:
                return None
            self._drawn.extend(self._pool.draw_some())
            if not self._drawn:
                self._pool.turn()
                return None
        return self._drawn.popleft()

    def _is_ready(self) -> bool:
        return bool(self._drawn) or self._feed.ready

    def _fill(self) -> None:
        while self._pool.wants() or (self._pool.has_room and self._feed.ready):
            batch = self._feed.take()
            if batch is None:
                self._pool.end()
            else:
                self._pool.push(batch)


def _at_once(shuffle: Shuffle, size: int, *, nbytes: int, padded: bool) -> int:
    """Batches of `nbytes` that may be copied at once. Those that are padded are so to their own largest record: one."""
    room = shuffle.capacity - shuffle.min_after_dequeue
    return 1 if padded else max(1, min(AT_ONCE, AT_ONCE_NBYTES // nbytes, room // (2 * size)))
