"""Sources: what users hand in, as streams that several producers read at once.

Imports core, mix, samplers, options and errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fastfeed.core.position import StreamStart
from fastfeed.errors import OptionError
from fastfeed.options import FeedOptions
from fastfeed.source.base import FILTERED, EpochEnd, Item, ItemReader, Source, is_iterator
from fastfeed.source.cached import cached, refuse_cache, uncached
from fastfeed.source.callables import CallableSource
from fastfeed.source.indexed import IndexedSource
from fastfeed.source.shared import SharedSource

__all__ = [
    "FILTERED",
    "CallableSource",
    "EpochEnd",
    "IndexedSource",
    "Item",
    "ItemReader",
    "SharedSource",
    "Source",
    "cached",
    "is_iterator",
    "refuse_cache",
    "source_from",
    "uncached",
]

_NEEDED = (
    "the source must be a callable that returns an iterator of batches, an iterable or iterator, "
    "or an object with len() and [index]"
)


def source_from(given: Any, options: FeedOptions, *, start: StreamStart | None = None) -> Source:
    """Return the source for a callable, an iterable or iterator, or an indexable.

    `start` is where the only stream of an ordered source begins in its first epoch. Raise
    OptionError for any other object.
    """
    if isinstance(given, (str, bytes, Mapping)):
        raise OptionError(f"{_NEEDED}, got {type(given).__name__}")
    if callable(given):
        return CallableSource(given, options)
    if hasattr(given, "__len__") and hasattr(given, "__getitem__"):
        return IndexedSource(given, options, start=start)
    if isinstance(given, Iterable) or hasattr(given, "__getitem__"):
        return SharedSource(given, options, start=start)
    raise OptionError(f"{_NEEDED}, got {type(given).__name__}")
