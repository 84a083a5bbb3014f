"""Source from a function that every producer calls for a stream of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fastfeed.core.worker import Worker, takes_worker
from fastfeed.errors import OptionError
from fastfeed.options import FeedOptions
from fastfeed.source.base import (
    Item,
    ItemReader,
    chunk_size,
    chunks,
    close_left,
    refuse_options,
)
from fastfeed.source.shared_order import SharedOrder
from fastfeed.source.stream_comparison import (
    WAYS_OUT,
    StreamComparison,
    digest_of,
    is_compared,
)

LOG = logging.getLogger("fastfeed")


class CallableSource:
    """Reads the stream that the function returns to each producer."""

    ordered = False
    repeatable = True

    def __init__(self, function: Callable[..., Any], options: FeedOptions) -> None:
        self.function = function
        self.takes_worker = takes_worker(function)
        self._chunk = chunk_size(options, default=False)
        self.reader = ItemReader(False, self._chunk, keyed=False)
        self._shard = options.place
        self.comparison = StreamComparison()
        self._orders = SharedOrder()
        # what happens to the digest of an item; a worker process sends it
        self.compare: Callable[..., None] = self.comparison.add
        self._lock = threading.Lock()
        self._owners: dict[int, tuple[Any, int]] = {}
        self._had_items: set[int] = set()
        refuse_options(options, names=("sampler", "remainder"), kind="a callable")
        if options.window:
            raise OptionError(
                f"order={options.order!r} requires a source of one order, an indexable or an "
                "iterable, got a callable: each producer has a stream of its own, and their "
                "batches are delivered as they come. Leave out order=, or pass an iterable with "
                "the slow part in transform="
            )
        if options.shard is not None and not self.takes_worker:
            raise OptionError(
                f"shard={options.place} requires a callable with an argument `worker`, because all "
                "ranks would yield the same data otherwise. Add it and yield the share "
                "worker.index of worker.count"
            )

    def open(self, worker: Worker) -> Iterator[Item]:
        """Call the function and yield the items of its stream.

        Raise OptionError for an unusable stream, and for one that begins like another producer's or
        ends: each producer has a copy.
        """
        rank, world = self._shard
        # The worker that the function sees counts the source's own items, and the producers of all
        # ranks.
        exposed = replace(
            worker,
            index=rank * worker.count + worker.index,
            count=world * worker.count,
            passed=worker.passed * max(1, self._chunk),
        )
        stream = self.function(worker=exposed) if self.takes_worker else self.function()
        self._claim(stream, worker)
        iterator = iter(stream)
        empty = True
        skip: int | None = None  # known after the first item: a generator's body runs only then
        try:
            items = self._compared(chunks(iterator, self._chunk), worker)
            for number, payload in enumerate(items):
                if skip is None:
                    skip = 0 if exposed.start_was_read else worker.passed
                    if skip:
                        LOG.warning(
                            "the callable does not use worker.start: it is read from its "
                            "beginning, and the items that were delivered already are skipped"
                        )
                if worker.count > 1 and number & number - 1 == 0:  # 0, and the powers of two
                    self._orders.look(worker.index, iterator)
                if number >= skip:
                    yield Item(None, payload, number - skip + worker.passed)
                empty = False
        except BaseException:
            close_left(iterator)
            raise
        finally:
            self._owners.pop(id(stream), None)
            self._orders.forget(worker.index)
        getattr(iterator, "close", int)()
        self._end(worker, empty and not worker.passed)

    def _compared(self, items: Iterator[Any], worker: Worker) -> Iterator[Any]:
        """Return the items, some of which are compared with those of other producers."""
        seen = worker.count == 1 or worker.index in self._had_items  # in an earlier epoch
        return items if self.takes_worker or seen else self._compare_each(items, worker.index)

    def _compare_each(self, items: Iterator[Any], stream: int) -> Iterator[Any]:
        for number, item in enumerate(items):
            if is_compared(number):
                self.compare(stream, number, digest=digest_of(item))
            yield item

    def _end(self, worker: Worker, empty: bool) -> None:
        if empty and worker.index in self._had_items:
            raise OptionError(
                f"the callable's stream is empty in epoch {worker.epoch} and was not before: the "
                "callable must return a new iterator at each call, not an exhausted one"
            )
        if not empty:
            self._had_items.add(worker.index)
        if not self.takes_worker and worker.count > 1 and not empty:
            raise OptionError(
                f"the callable's stream ended, and each of the {worker.count} producers reads a "
                f"stream of its own: {WAYS_OUT}"
            )

    def _claim(self, stream: Any, worker: Worker) -> None:
        """Raise OptionError for an invalid stream, and for an iterator shared by two producers.

        Two threads cannot run one generator.
        """
        if isinstance(stream, (tuple, Mapping, np.ndarray)) or not isinstance(stream, Iterable):
            raise OptionError(
                "the callable must return an iterator of batches, it returned "
                f"{type(stream).__name__}. Write it with `yield`: `while True: yield make_batch()` "
                "if each call makes one batch"
            )
        if not hasattr(stream, "__next__"):
            return
        with self._lock:
            _, owner = self._owners.setdefault(id(stream), (stream, worker.index))
            if owner != worker.index:
                raise OptionError(
                    f"the callable returned the same {type(stream).__name__} object to producers "
                    f"{owner} and {worker.index}: it must return a new one at each call. Or pass "
                    "that iterator itself: one stream, read under a lock, with the slow part in "
                    "transform="
                )
