"""Records that keep what the producers made of them in the first epoch."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fastfeed.core.collate import Allocate
from fastfeed.core.leaves import array_of
from fastfeed.core.structure import Structure, describe, leaves_of, rebuild, structure_of
from fastfeed.core.worker import UserFunction, Worker, has_parameter
from fastfeed.errors import OptionError
from fastfeed.options import Cache, FeedOptions
from fastfeed.source.arrays import ColumnReader
from fastfeed.source.base import FILTERED, Source
from fastfeed.source.cache_file import ABSENT, FILTERED_OUT, CacheFile, new_cache_file
from fastfeed.source.indexed import IndexedSource
from fastfeed.source.mix import Mix

LOG = logging.getLogger("fastfeed")
# Records that each process makes twice: 97 % of them see a transform that changes every fifth.
CHECKED = 16
Array = np.ndarray[Any, Any]


class CachedRecords:
    """An indexable of made records: `make` of a record by index, which is called once.

    Every process checks its first records against the cache, and that making them again gives the
    same: a cache of random records would repeat their draws. Raise OptionError otherwise.
    """

    def __init__(self, data: Any, cache: Cache, *, make: Callable[[int], Any]) -> None:
        self._maker, self._cache, self._length = make, cache, len(data)
        path, close, nbytes = new_cache_file(cache.place, nbytes=cache.nbytes)
        self.close = weakref.finalize(self, close)
        self._open(path, nbytes)

    def _open(self, path: str, nbytes: int, *, run: int = 0) -> None:
        self._file = CacheFile(path, self._length, nbytes=nbytes, run=run)
        self._nbytes = nbytes
        self._structure: Structure = None
        self._known = False
        self._unchecked = 1 if self._cache.random else CHECKED
        self._reader: ColumnReader | None = None
        self._warned = False  # of damage: a file that was cut off has thousands of such records
        self._lock = threading.Lock()
        self._damaged_before = self._file.damaged

    @property
    def remade(self) -> int:
        """Damaged records of an earlier run that were made again in this one, by any process."""
        return self._file.damaged - self._damaged_before

    def release(self) -> None:
        """Give the memory, or the map of the file, back; no record is read any more."""
        self._reader = None
        self._file.release()
        self.close()

    def __getstate__(self) -> tuple[Any, ...]:
        return (
            self._maker,
            self._cache,
            self._length,
            self._file.path,
            self._nbytes,
            self._file.run,
        )

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Open the same cache in another process."""
        self._maker, self._cache, self._length, path, nbytes, run = state
        self._open(path, nbytes, run=run)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        if self._unchecked or not self._known:
            return self._first(index)
        state = self._state(index)
        if state == FILTERED_OUT:
            return FILTERED
        if state:
            # A copy: what the user's functions do to it, or keep of it, does not touch the file.
            return rebuild(self._structure, [column.copy() for column in self._row(index)])
        record = self._maker(index)
        self._put(index, None if record is FILTERED else self._arrays(record, index))
        return record

    def _state(self, index: int) -> int:
        """Return the state of a record in the file, where a damaged one is absent."""
        file, state = self._file, ABSENT
        if index < file.capacity and file.columns:
            state = int(file.states[index])
        if state and file.is_damaged(index):
            LOG.log(
                logging.DEBUG if self._warned else logging.WARNING,
                "record %d of the cache %s was damaged, and is made again, as are all others like "
                "it: snapshot().remade counts them",
                index,
                file.path,
            )
            self._warned, state = True, ABSENT
        return state

    def _row(self, index: int) -> list[Array]:
        return [column[index] for column in self._file.columns]

    def gather(self, indices: Sequence[int], allocate: Allocate) -> Any:
        """Return the records as one batch, or None if some of them are still to be made."""
        reader, rows = self._reader, np.asarray(indices)
        if reader is None or self._unchecked or not self._file.holds(rows):
            return None
        return reader.gather(rows, allocate)

    def _put(self, index: int, leaves: list[Array] | None) -> None:
        """Keep a record; None: one that is filtered out."""
        if leaves is None:
            self._file.leave_out(index)
        else:
            self._file.put(index, leaves)

    def _first(self, index: int) -> Any:
        """Make one of the first records of a process, and check it. Raise OptionError for what the
        cache must not hold."""
        record = self._maker(index)
        leaves = None if record is FILTERED else self._arrays(record, index)
        if self._unchecked and not self._cache.random:
            again = self._maker(index)
            if not _same(leaves, None if again is FILTERED else self._arrays(again, index)):
                raise OptionError(
                    f"cache={self._cache.place!r}: transform= or filter= makes another record each "
                    "time, and the cache would repeat the first. Put random operations into "
                    "augment= or batch_transform=, or ask for it: cache=Cache(..., random=True)"
                )
        with self._lock:
            if not self._known and leaves is not None:
                self._learn(record, leaves)
            known = self._known
            self._unchecked = max(0, self._unchecked - 1)
        if known:
            self._compare(index, leaves)
            self._put(index, leaves)
        return record

    def _learn(self, record: Any, leaves: list[Array]) -> None:
        """Learn from a record what a row is."""
        self._structure = structure_of(record)
        self._file.learn(leaves, describe(self._structure))
        if self._file.full:
            LOG.warning(
                "no space for the cache %s: each epoch makes all records again", self._file.path
            )
        self._reader = ColumnReader(self._structure, self._file.columns)
        self._known = True

    def _compare(self, index: int, leaves: list[Array] | None) -> None:
        """Refuse a cache that holds another record."""
        state = ABSENT if self._cache.random else self._state(index)
        held = self._row(index) if state not in (ABSENT, FILTERED_OUT) else None
        if state != ABSENT and not _same(leaves, held):
            raise OptionError(
                f"cache={self._cache.place!r} holds other records: record {index} differs. It was "
                "made from another data set, or by another transform= or filter=. Delete it, or "
                "choose another folder"
            )

    def _arrays(self, record: Any, index: int) -> list[Array]:
        leaves = leaves_of(structure_of(record) if not self._known else self._structure, record)
        arrays = [array_of(leaf, f"record {index}") for leaf in leaves or ()]
        wrong = [array for array in arrays if array.dtype.kind not in "biufcS"]
        columns = self._file.columns
        other = bool(columns) and [(a.shape, a.dtype) for a in arrays] != [
            (column.shape[1:], column.dtype) for column in columns
        ]
        if not arrays or wrong or other:
            given = ", ".join(f"{array.dtype} {array.shape}" for array in arrays)
            raise OptionError(
                f"cache= requires records of numbers with one shape and dtype, and record {index} "
                f"is {describe(structure_of(record))} of {given}: make one shape in transform=, or "
                "leave out cache="
            )
        return arrays


def refuse_cache(given: Any, source: Source, *, options: FeedOptions) -> None:
    """Raise OptionError for a cache of what has no index, or is drawn anew in each epoch."""
    cache = options.cache
    if not isinstance(cache, Cache):
        return
    if not (isinstance(source, IndexedSource) and source.reader.records) or isinstance(given, Mix):
        raise OptionError(
            f"cache={cache.place!r} requires single records by index (len() and [index], "
            f"records=True), got {type(given).__name__}"
        )
    if source.ends is not None:
        raise OptionError(
            f"cache={cache.place!r} of {type(given).__name__}, whose on_epoch_end may change its "
            "records after each epoch: use only one of them"
        )
    transform = options.transform
    if transform is not None and has_parameter(transform, "worker") and not cache.random:
        raise OptionError(
            f"cache={cache.place!r}: transform= takes `worker`, as random functions do, and a "
            "cache would repeat its draws in each epoch. Put random operations into augment= or "
            "batch_transform=, or ask for it: cache=Cache(..., random=True)"
        )


def cached(given: Any, options: FeedOptions, *, seed: int) -> Any:
    """Return the source, with its cache if the options have one."""
    if not isinstance(options.cache, Cache):
        return given
    transform = UserFunction(options.transform) if options.transform else None
    make = partial(
        _record,
        data=given,
        filter=options.filter,
        transform=transform,
        worker=Worker(0, 1, seed, 0),
    )
    return CachedRecords(given, options.cache, make=make)


def uncached(options: FeedOptions) -> FeedOptions:
    """Return the options that are left to a feed that reads from a cache."""
    if options.cache is None:
        return options
    return replace(options, filter=None, transform=None, cache=None)


def _record(
    index: int,
    *,
    data: Any,
    filter: Callable[[Any], Any] | None,
    transform: UserFunction | None,
    worker: Worker,
) -> Any:
    """Return what the producers make of a record, or FILTERED. Its draws depend on the seed and the
    index."""
    item = data[index]
    if filter is not None and not filter(item):
        return FILTERED
    return item if transform is None else transform(item, worker.for_item((index,)))


def _same(one: Sequence[Array] | None, other: Sequence[Array] | None) -> bool:
    if one is None or other is None:
        return one is other
    return len(one) == len(other) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(one, other, strict=True)
    )
