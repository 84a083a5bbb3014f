"""The size of a run and of its batches, where they are known before it begins."""

from __future__ import annotations

from fastfeed.options import FeedOptions
from fastfeed.source import IndexedSource, Source


def run_batches(source: Source, options: FeedOptions) -> int | None:
    """Return the batches of every run that a loop takes from its beginning; None if unknown."""
    items, size = _epoch_items(source, options), options.batch_size or 1
    if items is None:
        return None
    last = size - 1 if options.last_batch == "keep" else 0
    return (items + last) // size * (options.epochs or 1)


def batch_rows(source: Source, options: FeedOptions) -> int | None:
    """Return the records of every batch that a loop takes; None where batches differ."""
    size, records = options.batch_size, _epoch_items(source, options)
    whole = options.last_batch == "drop" or (
        records is not None and size is not None and not records % size
    )
    return size if whole else None


def _epoch_items(source: Source, options: FeedOptions) -> int | None:
    """Return the records of every epoch, or the batches that are delivered as they are; None where
    epochs differ, records may be left out, or batches are cut anew."""
    skips = options.on_error == "skip" or options.on_worker_death != "raise"
    recut = not source.records and options.batch_size is not None
    skips = skips or options.filter is not None or options.stealing
    if skips or recut or not isinstance(source, IndexedSource):
        return None
    return source.epoch_items
