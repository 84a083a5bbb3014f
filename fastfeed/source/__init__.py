"""Sources: what users hand in, as streams that several producers read at once.

Imports core, mix, samplers, options and errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fastfeed.core.position import StreamStart
from fastfeed.errors import OptionError
from fastfeed.options import FeedOptions
from fastfeed.source.arrays import Arrays, arrays_from
from fastfeed.source.base import FILTERED, EpochEnd, Item, ItemReader, Source
from fastfeed.source.cached import CachedRecords, cached, refuse_cache, uncached
from fastfeed.source.callables import CallableSource
from fastfeed.source.epoch_ends import EpochEnds
from fastfeed.source.indexed import IndexedSource, is_indexable
from fastfeed.source.record_watch import RecordWatch, is_watched
from fastfeed.source.shared import SharedSource
from fastfeed.source.stream_comparison import StreamComparison

__all__ = [
    "FILTERED",
    "Arrays",
    "CachedRecords",
    "CallableSource",
    "EpochEnd",
    "IndexedSource",
    "Item",
    "ItemReader",
    "RecordWatch",
    "SharedSource",
    "Source",
    "StreamComparison",
    "arrays_from",
    "cached",
    "is_watched",
    "refuse_cache",
    "source_from",
    "uncached",
]

_NEEDED = (
    "the source must be a callable that returns an iterator of batches, an iterable or iterator, "
    "an object with len() and [index], or columns of one length in a tuple or dict"
)


def source_from(
    given: Any,
    options: FeedOptions,
    *,
    start: StreamStart | None = None,
    ends: EpochEnds | None = None,
) -> Source:
    """Return the source for a callable, an iterable or iterator, or an indexable.

    `start` is where the only stream of an ordered source begins in its first epoch; `ends` are
    those of the feeds before. Raise OptionError for any other object.
    """
    given = arrays_from(given, options)
    indexable = is_indexable(given)
    if options.stealing and not indexable:
        raise OptionError(
            f"shard={options.shard!r} requires an indexable source (len() and [index]), whose "
            f"batches have numbers that ranks can share out, got {type(given).__name__}"
        )
    if isinstance(given, (str, bytes, Mapping)):
        raise OptionError(f"{_NEEDED}, got {_described(given)}")
    if indexable:  # also if it can be called
        return IndexedSource(given, options, start=start, ends=ends)
    if callable(given):
        return CallableSource(given, options)
    if isinstance(given, Iterable) or hasattr(given, "__getitem__"):
        return SharedSource(given, options, start=start)
    raise OptionError(f"{_NEEDED}, got {type(given).__name__}")


def _described(given: Any) -> str:
    name = type(given).__name__
    sources = given.values() if isinstance(given, Mapping) else ()
    if not sources or any(isinstance(v, str) or not hasattr(v, "__getitem__") for v in sources):
        return name
    return f"{name}: if each value is a source, pass one: source[{next(iter(given), None)!r}]"
