"""A session's shuffle: records pass a numpy pool of our own, so that the queue in the graph moves whole batches.

A RandomShuffleQueue copies record by record, in and out, each one into memory of its own, while it holds its lock.
"""

from __future__ import annotations

import logging

from fastfeed.batch import Batch
from fastfeed.errors import OptionError
from fastfeed.feed import Feed
from fastfeed.options import Shuffle
from fastfeed.shuffle import ShufflePool

LOG = logging.getLogger("fastfeed")


class SessionShuffle:
    """The records of a feed, shuffled. To the pool a run is one epoch: the end of each is mixed with the start of the
    next, as in a queue.

    Raises OptionError where the pool does not fit the batch or the memory.
    """

    def __init__(self, feed: Feed, shuffle: Shuffle, *, first: Batch, size: int, seed: int) -> None:
        options = feed.options
        self._feed = feed
        self._pool = ShufflePool(
            shuffle,
            batch_size=size,
            last_batch=options.last_batch,
            seed=seed,
            pad=options.pad if options.padded else None,
        )
        record_nbytes = max(1, first.nbytes // first.rows)
        nbytes = shuffle.capacity * record_nbytes
        if nbytes > options.memory_nbytes:
            raise OptionError(
                f"{shuffle.capacity} records of {record_nbytes} bytes do not fit into the {options.memory_nbytes} "
                "bytes that batches in flight may take: choose a smaller shuffle=Shuffle(capacity=..., "
                "min_after_dequeue=...), or raise memory="
            )
        LOG.info("the shuffle pool takes %.1f MB: %d records", nbytes / 1e6, shuffle.capacity)

    @property
    def held(self) -> int:
        """Records in the pool."""
        return self._pool.held

    def take(self) -> Batch | None:
        """The next batch, drawn from the pool, or None where everything was drawn."""
        pool = self._pool
        while pool.wants():
            batch = self._feed.take()
            if batch is None:
                pool.end()
            else:
                pool.push(batch)
        return None if pool.finished else pool.draw()
