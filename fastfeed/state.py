"""A run's state as JSON: what was consumed, and of what; restoring it refuses another stream and says what differs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastfeed.errors import FeedWarning, OptionError, message_of
from fastfeed.options import FeedOptions, Shuffle
from fastfeed.position import starts_of
from fastfeed.runs import Span
from fastfeed.source import CallableSource, IndexedSource, SharedSource, Source

VERSION = 1
WORDS = {IndexedSource: "indexable", SharedSource: "iterable", CallableSource: "callable"}


def fingerprint(given: Any, source: Source, *, options: FeedOptions) -> dict[str, Any]:
    """What decides which records come under which number."""
    known: dict[str, Any] = {
        "source": WORDS[type(source)],
        "records": source.records,
        "shard": None if options.shard is None else list(options.shard),
        "remainder": options.remainder,
        "shuffle": _shuffle(options.shuffle),
    }
    mixed = bool(options.shuffle) and not (source.indexed and options.shuffle is True)  # record by record
    if source.records or mixed:
        known["batch_size"] = options.batch_size
    if mixed:
        known["last_batch"] = options.last_batch
    if isinstance(source, IndexedSource):
        sampler = options.sampler
        known |= {"class": type(given).__name__, "length": len(given)}
        known["sampler"] = None if sampler is None else type(sampler).__name__
    if not source.ordered:
        known["producers"] = options.producers
    return known


def saved(position: dict[str, Any], *, seed: int, of: dict[str, Any]) -> dict[str, Any]:
    """The whole state, of a position."""
    return {"version": VERSION, "seed": seed, "of": of, **position}


def restored(state: Any, *, of: dict[str, Any], seed: int | None, span: Span) -> tuple[Span, int]:
    """Where to begin, and the root seed; OptionError where the state is not one of this stream."""
    if not isinstance(state, Mapping) or "version" not in state:
        raise OptionError(f"restore({type(state).__name__}): needed what FeedRunner.state() gave")
    if state["version"] != VERSION:
        raise OptionError(f"the state has version {state['version']!r}: this fastfeed reads version {VERSION}")
    keys = ("seed", "of", "epoch", "run_first", "streams", "batches", "records")
    missing = [key for key in keys if key not in state or state[key] is None]
    if missing:
        raise OptionError(f"the state lacks {', '.join(missing)}: needed all of what FeedRunner.state() gave")
    had = {"seed": state["seed"], **state["of"]}
    have = {"seed": state["seed"] if seed is None else seed, **of}
    differences = [
        f"{name} was {had.get(name)!r} and is {have.get(name)!r}"
        for name in sorted({*had, *have})
        if had.get(name) != have.get(name)
    ]
    if differences:
        raise OptionError(
            f"the state is of another stream: {'; '.join(differences)}. Restore it with the source and the options "
            "that it was saved with (the number of threads and processes may be another)"
        )
    try:
        counts = (int(state["batches"]), int(state["records"]))
        begin = replace(span, epoch=int(state["epoch"]), run_first=int(state["run_first"]), counts=counts)
        begin = replace(begin, starts=starts_of(state), pool=state.get("pool"))
        if not (begin.epoch >= begin.run_first >= 0 and min(counts) >= 0):
            raise ValueError(f"epoch {begin.epoch} of a run from {begin.run_first}, {counts[0]} batches")
        return begin, int(state["seed"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OptionError(
            f"the state is damaged ({message_of(error)}): needed what FeedRunner.state() gave, unchanged"
        ) from error


def warn_of_reading_again(source: Source, span: Span) -> None:
    """Says what it costs where a stream can only be read from its beginning."""
    items = sum(start.first for start in span.starts.values())
    takes_start = isinstance(source, CallableSource) and source.takes_worker
    if items and not isinstance(source, IndexedSource) and not takes_start:
        how = "let the callable take `worker` and begin at worker.start, or hand in an indexable"
        warnings.warn(
            f"the state is {items} items into the epoch, and the source can only be read from its beginning: they are "
            f"made again and passed over, which takes as long as it did before. To begin at once, {how}",
            FeedWarning,
            stacklevel=3,
        )


def _shuffle(shuffle: bool | Shuffle | None) -> Any:
    if isinstance(shuffle, Shuffle):
        return [shuffle.capacity, shuffle.min_after_dequeue]
    return bool(shuffle)
