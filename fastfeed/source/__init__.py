"""What the user hands in, as streams that several producers read at once. Imports only core,
errors, options, mix and samplers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fastfeed.core.position import Start
from fastfeed.errors import OptionError
from fastfeed.options import FeedOptions
from fastfeed.source.base import EpochEnd, Item, Items, Source, ends_for_good
from fastfeed.source.callables import CallableSource
from fastfeed.source.indexed import IndexedSource
from fastfeed.source.shared import SharedSource

__all__ = [
    "CallableSource",
    "EpochEnd",
    "IndexedSource",
    "Item",
    "Items",
    "SharedSource",
    "Source",
    "ends_for_good",
    "source_from",
]

_NEEDED = "a callable that returns an iterator of batches, an iterable or iterator, or an object with len() and [index]"


def source_from(given: Any, options: FeedOptions, *, start: Start | None = None) -> Source:
    """Return the stream reader for a callable, an iterable or iterator, or an indexable. Raise
    OptionError for anything else.

    `start`: where the only stream of an ordered source begins in the first epoch.
    """
    if isinstance(given, (str, bytes, Mapping)):
        raise OptionError(f"a {type(given).__name__} is no source: needed {_NEEDED}")
    if callable(given):
        return CallableSource(given, options)
    if hasattr(given, "__len__") and hasattr(given, "__getitem__"):
        return IndexedSource(given, options, start=start)
    if isinstance(given, Iterable) or hasattr(given, "__getitem__"):
        return SharedSource(given, options, start=start)
    raise OptionError(f"a {type(given).__name__} is no source: needed {_NEEDED}")
