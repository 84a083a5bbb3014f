"""A callable source: every producer calls the function for a stream of its own."""

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
from fastfeed.source.base import Item, chunk_size, chunks, refuse

LOG = logging.getLogger("fastfeed")


class CallableSource:
    """Streams that a function returns, one for each producer."""

    ordered = False
    indexed = False
    again = True

    def __init__(self, function: Callable[..., Any], options: FeedOptions) -> None:
        self._function = self.shipped = function
        self.takes_worker = takes_worker(function)
        self._chunk = chunk_size(options, default=False)
        self.records = self._chunk > 0
        self._may_end = self.takes_worker or options.repeat_per_producer
        self._shard = options.shard or (0, 1)
        self._lock = threading.Lock()
        self._given_out: dict[int, tuple[Any, int]] = {}
        self._gave: set[int] = set()
        refuse(options, names=("sampler", "remainder"), kind="a callable")
        if options.shard is not None and not self.takes_worker:
            raise OptionError(
                f"shard={options.shard} of a callable that does not take `worker`: the data of the "
                "ranks could not be separated. Give it an argument `worker` and yield the share "
                "worker.index of worker.count"
            )

    def open(self, worker: Worker) -> Iterator[Item]:
        """Call the function and yield the items of its stream. Raise OptionError if a finite stream
        would repeat the data."""
        rank, world = self._shard
        # The Worker that the function gets counts items as it yields them, and the producers of all
        # ranks.
        told = replace(
            worker,
            index=rank * worker.count + worker.index,
            count=world * worker.count,
            passed=worker.passed * max(1, self._chunk),
        )
        stream = self._function(worker=told) if self.takes_worker else self._function()
        self._claim(stream, worker)
        iterator = iter(stream)
        empty = True
        skip: int | None = None  # known with the first item: the body of a generator runs only then
        try:
            for number, payload in enumerate(chunks(iterator, self._chunk)):
                if skip is None:
                    skip = 0 if told.began_at_start else worker.passed
                    if skip:
                        LOG.warning(
                            "the callable is read from its beginning, and items that were "
                            "delivered are skipped"
                        )
                if number >= skip:
                    yield Item(None, payload, number - skip + worker.passed)
                empty = False
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                close()
            self._given_out.pop(id(stream), None)
        self._end(worker, empty and not worker.passed)

    def fetch(self, part: Any) -> Any:
        """Return the item itself."""
        return part

    def draw_key(self, part: Any, *, number: int, position: int) -> None:
        """Return None: the draws depend on the producer."""

    def _end(self, worker: Worker, empty: bool) -> None:
        if empty and worker.index in self._gave:
            raise OptionError(
                f"the callable's stream was empty in epoch {worker.epoch} and was not before: "
                "needed a new iterator at each call, and it seems to return one that is used up"
            )
        if not empty:
            self._gave.add(worker.index)
        if not self._may_end and worker.count > 1 and not empty:
            raise OptionError(
                f"the callable's stream ended, and each of the {worker.count} producers has one of "
                "its own: the data would be delivered several times. Three ways out: give the "
                "callable an argument `worker` and yield the share worker.index of worker.count; "
                "pass an iterable and do the slow part in transform=; or set "
                "repeat_per_producer=True if each producer may deliver a full copy"
            )

    def _claim(self, stream: Any, worker: Worker) -> None:
        """Raise OptionError for what is no stream, and for one iterator in two producers (a
        generator cannot be run by two threads)."""
        if isinstance(stream, (tuple, Mapping, np.ndarray)) or not isinstance(stream, Iterable):
            raise OptionError(
                f"the callable returned a {type(stream).__name__}: needed an iterator of batches. "
                "Write it with `yield`, or pass iter(function, None) if each call makes one batch"
            )
        if not hasattr(stream, "__next__"):
            return
        with self._lock:
            _, owner = self._given_out.setdefault(id(stream), (stream, worker.index))
            if owner != worker.index:
                raise OptionError(
                    f"the callable returned the same {type(stream).__name__} object to producers "
                    f"{owner} and {worker.index}: needed a new one at each call. Or pass that "
                    "iterator itself: one stream, read under a lock, with the slow part in "
                    "transform="
                )
