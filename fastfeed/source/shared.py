"""Source of one iterable or iterator, read under a lock; only the transform runs in parallel."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from fastfeed.core.position import StreamStart
from fastfeed.core.worker import Worker
from fastfeed.errors import OptionError, ProducerFailed, SpecError
from fastfeed.options import FeedOptions
from fastfeed.source.base import (
    EpochEnd,
    Item,
    ItemReader,
    TicketedSource,
    chunks,
    is_iterator,
    refuse_options,
)
from fastfeed.source.record_watch import RefilledItem
from fastfeed.source.reused_memory import ReusedMemory, arrays_in


class SharedSource(TicketedSource):
    """Reads one stream; each item goes to the producer that requests it first."""

    def __init__(
        self, stream: Iterable[Any], options: FeedOptions, *, start: StreamStart | None = None
    ) -> None:
        super().__init__(options, start=start, single_records=False)
        self._stream = stream
        self.repeatable = not is_iterator(stream)
        self.reader = ItemReader(False, self._chunk, shard=self._shard)
        self._iterator: Iterator[Any] = iter(())
        self._first: int | None = None
        self._number = 0
        self._had_items = False  # True if there ever was an item
        # another thread may fill again what one works on
        threads = options.threads > 1 or "threads" in options.tuned
        shares = threads and not options.workers and not self._chunk
        self._memory = ReusedMemory(weakref.ref) if shares else None
        self._refilled = RefilledItem()
        refuse_options(options, names=("sampler",), kind="an iterable")
        if (options.epochs or 1) > 1 and not self.repeatable:
            raise OptionError(
                f"epochs={options.epochs} needs a source that can be read again, and an iterator "
                "can be read only once. Pass the function that makes it, or a list of batches with "
                "records=False"
            )
        if options.shard is not None and options.remainder != "drop":
            rank, world = options.place
            raise OptionError(
                f'shard= of an iterable must be Shard({rank}, {world}, remainder="drop"): its '
                "length is unknown, so the ranks get equally many items only if the last "
                "incomplete round is left out"
            )

    def _next(self, worker: Worker) -> Item | None:
        epoch = worker.epoch
        if epoch < self._epoch or (epoch == self._epoch and self._ended):
            return None
        try:
            if epoch > self._epoch:
                self._begin(epoch)
            payload: Any = next(self._iterator, EpochEnd)
            while payload is not EpochEnd and not self._is_due():
                self._number += 1
                payload = next(self._iterator, EpochEnd)
            if self._memory is not None and payload is not EpochEnd:
                self._memory.refuse(arrays_in(payload), f"batch {self._ticket}")
                self._refilled.refuse(payload, self._ticket)
        except SpecError:  # of records that change
            self._ended = True
            raise
        except BaseException as error:
            self._ended = True
            raise ProducerFailed(f"batch {self._ticket}", error, ticket=self._ticket) from error
        self._ended = payload is EpochEnd
        self._opened = None if self._ended else self._opened
        if self._ended and self._had_items and not self._number:
            raise OptionError(
                f"the iterable is empty in epoch {epoch} and was not before: its __iter__ must "
                "return a new iterator at each call, not an exhausted one"
            )
        self._had_items = self._had_items or not self._ended
        self._ticket += 1
        self._number += 1
        return Item(self._ticket - 1, payload, self._number - 1)

    def _begin(self, epoch: int) -> None:
        if self._first is None:
            self._first = epoch
        self._epoch, self._number = epoch, 0
        self._ended = False
        rank, world = self._shard
        items = iter(self._stream)
        self._opened = items if self.repeatable else None
        own = items if world == 1 else _every(items, rank, world=world)
        self._iterator = chunks(own, self._chunk)

    def _is_due(self) -> bool:
        return self._epoch != self._first or self._start.wants(self._number)


def _every(items: Iterator[Any], rank: int, *, world: int) -> Iterator[Any]:
    """Yield item `rank` of each complete round of `world` items."""
    while len(found := list(islice(items, world))) == world:
        yield found[rank]
