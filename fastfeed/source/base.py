"""What every source gives to its producers: items, each a batch or the records of one.

A ticket is the position in the one order that the source has over all epochs of a feed, or None
where every producer has a stream of its own; `number` counts the items of an epoch. The payload is
one batch, or, with records=True, a list of records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol

from fastfeed.core.worker import Worker
from fastfeed.errors import OptionError
from fastfeed.options import FeedOptions


class Item(NamedTuple):
    """One payload and its position."""

    ticket: int | None
    payload: Any
    number: int


class EpochEnd:
    """Marks the end of an epoch, in place of a payload: everything of this epoch has a smaller
    ticket."""


class Source(Protocol):
    """A source that several producers can read at once."""

    ordered: bool  # tickets count up from 0 over all producers
    indexed: bool  # a payload holds indices, which `fetch` turns into items
    records: bool  # a payload is a list of single records
    again: bool  # it can be read for another epoch
    # what a worker process gets: the function, or `Items` where the trainer keeps the order
    shipped: Any

    def open(self, worker: Worker) -> Iterator[Item]:
        """Yield the payloads from which this producer makes the batches of an epoch."""

    def fetch(self, part: Any) -> Any:
        """Return the item that `part` of a payload stands for: the slow half of reading, called
        without any lock."""

    def draw_key(self, part: Any, *, number: int, position: int) -> tuple[int, ...] | None:
        """Return what random draws for a part of an item depend on, beside seed and epoch; None: on
        the producer."""


@dataclass(frozen=True)
class Items:
    """The half of an ordered source that turns payloads into items. `size` is the number of records
    in a whole item, or 0 where items are batches. With `repeats` an index comes more than once in
    an epoch. The items belong to one rank: `shard` separates its draws from those of others."""

    indexed: bool
    records: bool
    data: Any = None
    size: int = 0
    repeats: bool = False
    shard: tuple[int, int] = (0, 1)

    def fetch(self, part: Any) -> Any:
        """Return the record or batch at index `part`, or the item itself."""
        return self.data[part] if self.indexed else part

    def draw_key(self, part: Any, *, number: int, position: int) -> tuple[int, ...] | None:
        """Return the record's index; its position in the epoch if it has none, or comes more than
        once."""
        rank, world = self.shard
        place = (number * max(1, self.size) + position) * world + rank
        if not self.indexed:
            return (place,)
        return (int(part), place) if self.repeats else (int(part),)


def chunks(iterator: Iterator[Any], size: int) -> Iterator[Any]:
    """Yield the items themselves, or lists of `size` of them."""
    if not size:
        return iterator
    return iter(lambda: list(islice(iterator, size)), [])


def chunk_size(options: FeedOptions, *, default: bool) -> int:
    """Return how many records make one batch, or 0 where the items are batches."""
    if not (default if options.records is None else options.records):
        return 0
    if options.batch_size is None:
        way = (
            "records=False if each item is a batch already"
            if default
            else "leave records out if items are batches"
        )
        raise OptionError(f"a source of single records needs batch_size=, such as 32; or {way}")
    return int(options.batch_size)


def ends_for_good(stream: Any) -> bool:
    """Return True for an iterator, which can be read only once."""
    return hasattr(stream, "__next__")


def refuse(options: FeedOptions, *, names: tuple[str, ...], kind: str) -> None:
    """Raise OptionError for options that only an indexable can follow."""
    for name in names:
        if getattr(options, name) is not None:
            raise OptionError(
                f"{name}= needs an indexable source (len() and [index]), and this is {kind}: pass "
                "an object with both, or do it in the source"
            )
