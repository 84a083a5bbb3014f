"""One iterable or iterator, read under a lock; the transform is what runs in parallel."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from fastfeed.core.position import FROM_THE_START, Start
from fastfeed.core.worker import Worker
from fastfeed.errors import OptionError, ProducerFailed
from fastfeed.options import FeedOptions
from fastfeed.source.base import EpochEnd, Item, Items, chunk_size, chunks, ends_for_good, refuse


class SharedSource:
    """Items of one stream, each given to the producer that asks first."""

    ordered = True
    indexed = False

    def __init__(
        self, stream: Iterable[Any], options: FeedOptions, *, start: Start | None = None
    ) -> None:
        self._stream = stream
        self._chunk = chunk_size(options, default=False)
        self._shard = options.shard or (0, 1)
        self._start = start or FROM_THE_START
        self.records = self._chunk > 0
        self.again = not ends_for_good(stream)
        self.shipped = Items(False, self.records, size=self._chunk, shard=self._shard)
        self.draw_key = self.shipped.draw_key
        self._lock = threading.Lock()
        self._iterator: Iterator[Any] = iter(())
        self._ticket = 0
        self._epoch = -1
        self._first: int | None = None
        self._number = 0
        self._ended = False
        self._gave = False  # True once there was an item
        refuse(options, names=("sampler",), kind="an iterable")
        if (options.epochs or 1) > 1 and not self.again:
            raise OptionError(
                f"epochs={options.epochs} needs a source that can be read again: an iterator ends "
                "once. Pass the function that makes it, or a list of batches with records=False"
            )
        if options.shard is not None and options.remainder != "drop":
            raise OptionError(
                f"shard={options.shard} of an iterable, of unknown length: every rank gets equally many items "
                'only if the last ones that do not fill a round of all ranks are left out. Set remainder="drop"'
            )

    def open(self, worker: Worker) -> Iterator[Item]:
        """Yield the items that this producer gets; the one that meets the end yields EpochEnd."""
        while True:
            with self._lock:
                item = self._read(worker.epoch)
            if item is None:
                return
            yield item

    def fetch(self, part: Any) -> Any:
        """Return the item itself."""
        return part

    def _read(self, epoch: int) -> Item | None:
        if epoch < self._epoch or (epoch == self._epoch and self._ended):
            return None
        try:
            if epoch > self._epoch:
                self._begin(epoch)
            payload: Any = next(self._iterator, EpochEnd)
            while payload is not EpochEnd and not self._wanted():
                self._number += 1
                payload = next(self._iterator, EpochEnd)
        except BaseException as error:
            self._ended = True
            raise ProducerFailed(f"batch {self._ticket}", error, ticket=self._ticket) from error
        self._ended = payload is EpochEnd
        if self._ended and self._gave and not self._number:
            raise OptionError(
                f"the iterable was empty in epoch {epoch} and was not before: needed a new "
                "iterator from each iter(), and it seems to return one that is used up"
            )
        self._gave = self._gave or not self._ended
        self._ticket += 1
        self._number += 1
        return Item(self._ticket - 1, payload, self._number - 1)

    def _begin(self, epoch: int) -> None:
        if self._first is None:
            self._first = epoch
        self._epoch, self._ended, self._number = epoch, False, 0
        rank, world = self._shard
        own = iter(self._stream) if world == 1 else _every(iter(self._stream), rank, world=world)
        self._iterator = chunks(own, self._chunk)

    def _wanted(self) -> bool:
        return self._epoch != self._first or self._start.wants(self._number)


def _every(items: Iterator[Any], rank: int, *, world: int) -> Iterator[Any]:
    """Yield one item of each whole round of `world`."""
    while len(found := list(islice(items, world))) == world:
        yield found[rank]
