"""What the user hands in, as streams: each producer opens one and gets (ticket, payload) pairs from it.

A ticket is the position in the one order that the source has, or None where every producer has a stream of its own.
The payload is one batch, or, with records=True, a list of records.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np

from fastfeed.errors import OptionError, ProducerFailed
from fastfeed.options import FeedOptions
from fastfeed.worker import Worker, takes_worker

Item = tuple["int | None", Any]


class EpochEnd:
    """In place of a payload: everything of this epoch has a smaller ticket."""


class Source(Protocol):
    """Something that can be read by several producers at once."""

    ordered: bool  # whether tickets count up from 0 over all producers
    indexed: bool  # whether a payload holds indices, which `fetch` turns into items
    records: bool  # whether a payload is a list of single records
    shipped: Any  # what a worker process is given: the function, or, where the trainer keeps the order, `Items`

    def open(self, worker: Worker) -> Iterator[Item]:
        """The payloads that this producer makes batches of in this epoch."""

    def fetch(self, part: Any) -> Any:
        """The item that `part` of a payload stands for; the slow half of reading, called outside any lock."""


@dataclass(frozen=True)
class Items:
    """The half of an ordered source that makes items of payloads."""

    indexed: bool
    records: bool
    data: Any = None

    def fetch(self, part: Any) -> Any:
        """The record or batch at index `part`, or the item itself."""
        return self.data[part] if self.indexed else part


def source_from(given: Any, options: FeedOptions) -> Source:
    """The stream reader for a callable, an iterable or iterator, or an indexable; OptionError for anything else."""
    if isinstance(given, (str, bytes, Mapping)):
        raise OptionError(f"a {type(given).__name__} is no source: needed {_NEEDED}")
    if callable(given):
        return CallableSource(given, options)
    if hasattr(given, "__len__") and hasattr(given, "__getitem__"):
        return IndexedSource(given, options)
    if isinstance(given, Iterable) or hasattr(given, "__getitem__"):
        return SharedSource(given, options)
    raise OptionError(f"a {type(given).__name__} is no source: needed {_NEEDED}")


_NEEDED = "a callable that returns an iterator of batches, an iterable or iterator, or an object with len() and [index]"


class CallableSource:
    """A function that every producer calls for a stream of its own."""

    ordered = False
    indexed = False

    def __init__(self, function: Callable[..., Any], options: FeedOptions) -> None:
        self._function = self.shipped = function
        self._takes_worker = takes_worker(function)
        self._chunk = _chunk_size(options, default=False)
        self.records = self._chunk > 0
        self._alone = options.producers == 1 or self._takes_worker or options.repeat_per_producer
        self._lock = threading.Lock()
        self._given_out: dict[int, tuple[Any, int]] = {}
        self._gave: set[int] = set()

    def open(self, worker: Worker) -> Iterator[Item]:
        """Calls the function and reads its stream; the first that ends where it must not is an OptionError."""
        stream = self._function(worker=worker) if self._takes_worker else self._function()
        self._claim(stream, worker)
        iterator = iter(stream)
        empty = True
        try:
            for payload in _chunks(iterator, self._chunk):
                yield None, payload
                empty = False
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                close()
            self._given_out.pop(id(stream), None)
        self._end(worker, empty)

    def fetch(self, part: Any) -> Any:
        """The item itself."""
        return part

    def _end(self, worker: Worker, empty: bool) -> None:
        if empty and worker.index in self._gave:
            raise OptionError(
                f"the callable's stream was empty in epoch {worker.epoch} and was not before: needed a new iterator "
                "at each call, and it seems to return one that is used up"
            )
        if not empty:
            self._gave.add(worker.index)
        if not self._alone and not empty:
            raise OptionError(
                f"the callable's stream ended, and each of the {worker.count} producers has one of its own: the data "
                "would be delivered several times. Three ways out: give the callable an argument `worker` and yield "
                "the share worker.index of worker.count; hand in an iterable and do the slow part in transform=; or "
                "say repeat_per_producer=True if each producer may deliver a full copy"
            )

    def _claim(self, stream: Any, worker: Worker) -> None:
        """Refuses what is no stream, and one iterator for two producers (a generator cannot be run by two threads)."""
        if isinstance(stream, (tuple, Mapping, np.ndarray)) or not isinstance(stream, Iterable):
            raise OptionError(
                f"the callable returned a {type(stream).__name__}: needed an iterator of batches. Write it with "
                "`yield`, or pass iter(function, None) if each call makes one batch"
            )
        if not hasattr(stream, "__next__"):
            return
        with self._lock:
            _, owner = self._given_out.setdefault(id(stream), (stream, worker.index))
            if owner != worker.index:
                raise OptionError(
                    f"the callable returned the same {type(stream).__name__} object to producers {owner} and "
                    f"{worker.index}: needed a new one at each call. Or pass that iterator itself: one stream, read "
                    "under a lock, with the slow part in transform="
                )


class SharedSource:
    """One iterable or iterator, read under a lock; what may run in parallel is the transform."""

    ordered = True
    indexed = False

    def __init__(self, stream: Iterable[Any], options: FeedOptions) -> None:
        self._stream = stream
        self._chunk = _chunk_size(options, default=False)
        self.records = self._chunk > 0
        self.shipped = Items(False, self.records)
        self._lock = threading.Lock()
        self._iterator: Iterator[Any] = iter(())
        self._ticket = 0
        self._epoch = -1
        self._ended = False
        if (options.epochs or 1) > 1 and ends_for_good(stream):
            raise OptionError(
                f"epochs={options.epochs} needs a source that can be read again: an iterator ends once. Pass the "
                "function that makes it, or a list of batches with records=False"
            )

    def open(self, worker: Worker) -> Iterator[Item]:
        """The items that this producer gets hold of; whoever sees the end hands out EpochEnd."""
        while True:
            with self._lock:
                item = self._read(worker.epoch)
            if item is None:
                return
            yield item

    def fetch(self, part: Any) -> Any:
        """The item itself."""
        return part

    def _read(self, epoch: int) -> Item | None:
        if epoch < self._epoch or (epoch == self._epoch and self._ended):
            return None
        try:
            if epoch > self._epoch:
                self._epoch, self._ended = epoch, False
                self._iterator = _chunks(iter(self._stream), self._chunk)
            payload: Any = next(self._iterator, EpochEnd)
        except BaseException as error:
            self._ended = True
            raise ProducerFailed(f"batch {self._ticket}", error, ticket=self._ticket) from error
        self._ended = payload is EpochEnd
        self._ticket += 1
        return self._ticket - 1, payload


class IndexedSource:
    """Records by index: every epoch is a plan of batches that the producers take from in turn."""

    ordered = True
    indexed = True

    def __init__(self, data: Any, options: FeedOptions) -> None:
        self._data = data
        self._length = len(data)
        self._chunk = _chunk_size(options, default=True)
        self.records = self._chunk > 0
        self.shipped = Items(True, self.records, data)
        self._shuffled = options.shuffle is True
        self._lock = threading.Lock()
        self._ticket = 0
        self._epoch = -1
        self._plan: Iterator[Any] = iter(())
        self._ended = False
        if not self._length:
            raise OptionError("the source has a length of 0: needed at least one record")
        if self._chunk and options.last_batch == "drop" and self._chunk > self._length:
            raise OptionError(
                f"batch_size={self._chunk} can never be filled: the source has {self._length} records and "
                'last_batch="drop"; lower batch_size or say last_batch="keep"'
            )

    def open(self, worker: Worker) -> Iterator[Item]:
        """The next batches of indices."""
        while True:
            with self._lock:
                item = self._next(worker)
            if item is None:
                return
            yield item

    def fetch(self, part: Any) -> Any:
        """The record at index `part`."""
        return self._data[part]

    def _next(self, worker: Worker) -> Item | None:
        if worker.epoch > self._epoch:
            self._plan, self._epoch, self._ended = self._new_plan(worker), worker.epoch, False
        if self._ended or worker.epoch < self._epoch:
            return None
        indices: Any = next(self._plan, EpochEnd)
        self._ended = indices is EpochEnd
        self._ticket += 1
        return self._ticket - 1, indices

    def _new_plan(self, worker: Worker) -> Iterator[Any]:
        if len(self._data) != self._length:
            raise OptionError(f"the source's length changed from {self._length} to {len(self._data)} between epochs")
        order: Any = range(self._length)
        if self._shuffled:
            order = np.random.default_rng((worker.seed, worker.epoch)).permutation(self._length).tolist()
        return _chunks(iter(order), self._chunk)


def _chunks(iterator: Iterator[Any], size: int) -> Iterator[Any]:
    """The items themselves, or lists of `size` of them."""
    if not size:
        return iterator
    return iter(lambda: list(islice(iterator, size)), [])


def _chunk_size(options: FeedOptions, *, default: bool) -> int:
    """How many records make one batch, or 0 where the items are batches already."""
    if not (default if options.records is None else options.records):
        return 0
    if options.batch_size is None:
        way = "records=False if each item is a batch already" if default else "leave records out if items are batches"
        raise OptionError(f"a source of single records needs batch_size=, such as 32; or {way}")
    return int(options.batch_size)


def ends_for_good(stream: Any) -> bool:
    """Whether it is an iterator, which can be read only once."""
    return hasattr(stream, "__next__")
