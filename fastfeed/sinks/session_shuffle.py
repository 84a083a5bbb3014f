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
from fastfeed.shuffle import ShufflePool

LOG = logging.getLogger("fastfeed")
# Every call of numpy on more than a few hundred elements hands the interpreter lock to the training loop and waits for
# it again. Of 32 MNIST records that made 75 k records/s batch by batch (RandomShuffleQueue: 106 k), 122 k eight a draw.
AT_ONCE, AT_ONCE_NBYTES = 8, 2**21


class SessionShuffle:
    """The records of a feed, shuffled, in batches of `size`; `first` is the feed's first batch.

    To the pool a run is one epoch: the end of each is mixed with the start of the next, as in a queue. Several small
    batches are one draw, where that leaves half of the room between min_after_dequeue and capacity.

    Raises OptionError where the pool does not fit the batch or the memory.
    """

    def __init__(self, feed: Feed, shuffle: Shuffle, *, first: Batch, size: int, seed: int) -> None:
        options = feed.options
        record_nbytes = max(1, first.nbytes // first.rows)
        self._feed = feed
        self._size = size
        self._keep = options.last_batch == "keep"
        self._cut: deque[Batch] = deque()  # drawn, and not taken
        self.dropped = 0  # records that did not fill a batch
        self._pool = ShufflePool(
            shuffle,
            batch_size=size * _at_once(shuffle, size, nbytes=size * record_nbytes, padded=options.padded),
            seed=seed,
            pad=options.pad if options.padded else None,
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
        return self._pool.held // self._size + len(self._cut)

    def take(self) -> Batch | None:
        """The next batch, or None where everything was drawn."""
        if not self._cut:
            self._fill()
            drawn = None if self._pool.finished else self._pool.draw()
            if drawn is None:
                return None
            self._pool.given()
            self._cut.extend(self._batches(drawn))
        return self._cut.popleft() if self._cut else None

    def _fill(self) -> None:
        while self._pool.wants():
            batch = self._feed.take()
            if batch is None:
                self._pool.end()
            else:
                self._pool.push(batch)

    def _batches(self, drawn: Batch) -> list[Batch]:
        """Only what is left at the end of the run can be a smaller one."""
        whole = drawn.rows if self._keep else drawn.rows - drawn.rows % self._size
        self.dropped += drawn.rows - whole
        starts = range(0, whole, self._size)
        parts = [tuple([leaf[start : start + self._size] for leaf in drawn.leaves]) for start in starts]
        return [Batch(part, len(part[0]), drawn.nbytes * len(part[0]) // drawn.rows) for part in parts]


def _at_once(shuffle: Shuffle, size: int, *, nbytes: int, padded: bool) -> int:
    """Batches of `nbytes` in a draw. Those that are padded are so to their own largest record: one by one."""
    room = shuffle.capacity - shuffle.min_after_dequeue
    return 1 if padded else max(1, min(AT_ONCE, AT_ONCE_NBYTES // nbytes, room // (2 * size)))
