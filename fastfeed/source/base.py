"""The interface of every kind of source: items, each of which is a batch or the records of one.

A ticket is the item's position in the one order that a source has over all epochs of a feed; it is
None if every producer has a stream of its own. `number` is the position in the epoch. The payload
is one batch or, with records=True, a list of records.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, NamedTuple, Protocol

from fastfeed.core.collate import Allocate
from fastfeed.core.position import FROM_THE_START, StreamStart
from fastfeed.core.status import INPUT, waiting
from fastfeed.core.worker import Worker
from fastfeed.errors import OptionError
from fastfeed.options import FeedOptions
from fastfeed.source.epoch_ends import EpochEnds
from fastfeed.source.record_watch import is_watched, watched

LOG = logging.getLogger("fastfeed")
FILTERED: Any = object()  # in place of an item that filter= leaves out


class Item(NamedTuple):
    """One payload and its position."""

    ticket: int | None
    payload: Any
    number: int


class EpochEnd:
    """Marker in place of a payload: every item of this epoch has a smaller ticket."""


class Source(Protocol):
    """A source that several producers can read at once."""

    ordered: bool  # True if tickets count up from 0 over all producers
    repeatable: bool  # True if it can be read for another epoch
    reader: ItemReader  # the slow half of reading, outside any lock

    def open(self, worker: Worker) -> Iterator[Item]:
        """Yield the payloads from which this producer makes batches in this epoch."""


@dataclass(frozen=True)
class ItemReader:
    """The half of a source that turns payloads into items. Worker processes receive it, if the
    trainer keeps the order.

    `indexed` is True if a payload holds indices of `data`. `size` is the number of records in a
    whole item, or 0 if items are batches. `keyed` is False if every producer has a stream of its
    own. `repeats` is True if an index may come more than once in an epoch. `shard` is the (rank,
    world) of these items, and keeps the draws of the ranks apart.
    """

    indexed: bool
    size: int
    data: Any = None
    keyed: bool = True
    repeats: bool = False
    shard: tuple[int, int] = (0, 1)

    @property
    def records(self) -> bool:
        """True if a payload is a list of single records."""
        return self.size > 0

    def fetch(self, part: Any) -> Any:
        """Return the record or batch at index `part`, or `part` itself."""
        return self.data[part] if self.indexed else part

    def fetch_all(self, parts: Any) -> Any:
        """Return the records at these indices as a list, from a source with `__getitems__` (as in
        torch); None where they come one by one, and where that call fails: the record that fails
        is then found."""
        whole = getattr(self.data, "__getitems__", None) if self.indexed and self.records else None
        if whole is None:
            return None
        try:
            records = list(whole(list(parts)))
        # of the user's code: the record that fails raises its own error again
        except BaseException:
            LOG.debug("__getitems__ failed, records are read one by one", exc_info=True)
            return None
        return records if len(records) == len(parts) else None

    def gather(self, parts: Any, allocate: Allocate) -> Any:
        """Return the records at these indices as one batch in memory from `allocate`, or None
        where they come one by one."""
        whole = getattr(self.data, "gather", None)
        return None if whole is None or not self.records else whole(parts, allocate)

    def draw_key(self, part: Any, *, number: int, position: int) -> tuple[int, ...] | None:
        """Return what random draws for a part of an item depend on, beside seed and epoch: the
        record's index, or its place in the epoch if it has no index, or with `repeats` both.

        None stands for the index of the producer.
        """
        if not self.keyed:
            return None
        rank, world = self.shard
        place = (number * max(1, self.size) + position) * world + rank
        if not self.indexed:
            return (place,)
        return (int(part), place) if self.repeats else (int(part),)


class TicketedSource(ABC):
    """A source of one order of items, which the producers take in turn, under a lock."""

    ordered = True
    ends: EpochEnds | None = None

    def __init__(
        self, options: FeedOptions, *, start: StreamStart | None, single_records: bool
    ) -> None:
        self._chunk = chunk_size(options, default=single_records)
        self._shard = options.place
        self._start = start or FROM_THE_START
        self._lock = threading.Lock()
        self._ticket = 0
        self._epoch = -1
        self._ended = False
        self._opened: Any = None  # the iterator of an epoch, unless it is the user's own

    def open(self, worker: Worker) -> Iterator[Item]:
        """Yield the items that this producer gets; the one that reaches the end yields EpochEnd."""
        while True:
            if not self._lock.acquire(blocking=False):
                with waiting(INPUT):
                    self._lock.acquire()
            try:
                item = self._next(worker)
            finally:
                self._lock.release()
            if item is None:
                return
            try:
                yield item
            finally:
                if self.ends is not None:
                    self.ends.made()

    def close(self) -> None:
        """Close what all producers read together: the last of them has ended."""
        with self._lock:
            opened, self._opened = self._opened, None
            close_left(opened)

    @abstractmethod
    def _next(self, worker: Worker) -> Item | None:
        """Return the next item, or None after the end of the worker's epoch. Called under the
        lock."""


def close_left(iterator: Any) -> None:
    """Close an iterator, or a source, that is left before its end: a generator runs its `finally`.
    Nobody waits for a batch any more, so an error is logged."""
    try:
        getattr(iterator, "close", int)()
    except BaseException:  # whatever the user's code raises
        LOG.error("the source raised an error when it was closed", exc_info=True)


def chunks(iterator: Iterator[Any], size: int) -> Iterator[Any]:
    """Return the items themselves, or lists of `size` of them."""
    if not size:
        return iterator
    numbers = count()

    def chunk() -> list[Any]:
        records = islice(iterator, size)
        return list(watched(records, "the source") if is_watched(next(numbers)) else records)

    return iter(chunk, [])


def chunk_size(options: FeedOptions, *, default: bool) -> int:
    """Return the number of records in one batch, or 0 if the items are batches already.

    Raise OptionError for single records without `batch_size`.
    """
    if not (default if options.records is None else options.records):
        if options.collate is not None:
            raise OptionError(
                "collate= makes a batch of single records, and this source yields batches: set "
                "records=True and batch_size=, or use batch_transform="
            )
        return 0
    if options.batch_size is None:
        way = (
            "set records=False if each item is a batch already"
            if default
            else "leave out records= if each item is a batch already"
        )
        raise OptionError(f"a source of single records needs batch_size=, such as 32; {way}")
    return int(options.batch_size)


def is_iterator(stream: Any) -> bool:
    """Return True for an iterator, which can be read only once."""
    return hasattr(stream, "__next__")


def refuse_options(options: FeedOptions, *, names: tuple[str, ...], kind: str) -> None:
    """Raise OptionError for options that only an indexable supports."""
    for name in names:
        if getattr(options, name) is not None:
            raise OptionError(
                f"{name}= requires an indexable source (len() and [index]), got {kind}: pass such "
                f"an object, or leave out {name}= and do the same in the source"
            )
