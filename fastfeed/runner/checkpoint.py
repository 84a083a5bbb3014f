"""A run's state as JSON: what was consumed, and of what; restoring it refuses another stream and
says what differs."""

from __future__ import annotations

import logging
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed.core.position import DONE, ONLY, starts_of
from fastfeed.engine.epoch_schedule import ResumePoint
from fastfeed.errors import FeedWarning, OptionError, message_of
from fastfeed.mix import Mix
from fastfeed.options import FeedOptions, Shuffle
from fastfeed.samplers import Balanced, Weighted
from fastfeed.source import CallableSource, IndexedSource, SharedSource, Source

if TYPE_CHECKING:
    from fastfeed.augment.spec import Augment

LOG = logging.getLogger("fastfeed")
VERSION = 1
STREAMS = "producers"  # how many had a stream of their own: whoever goes on makes as many
KEYS = ("seed", "of", "epoch", "run_first", "streams", "batches", "records", "sizes", "pool")
WORDS = {IndexedSource: "indexable", SharedSource: "iterable", CallableSource: "callable"}


def fingerprint(given: Any, source: Source, *, options: FeedOptions) -> dict[str, Any]:
    """What decides which records come under which number."""
    known: dict[str, Any] = {
        "source": WORDS[type(source)],
        "records": source.records,
        "world": None if options.shard is None else options.shard[1],
        "remainder": options.remainder,
        "shuffle": _shuffle(options.shuffle),
    }
    # record by record
    mixed = bool(options.shuffle) and not (source.indexed and options.shuffle is True)
    if source.records or mixed:
        known["batch_size"] = options.batch_size
    if mixed:
        known["last_batch"] = options.last_batch
    if options.shard is not None and not (source.ordered and options.order == "kept"):
        # where the order is kept, every rank is at the same place in its own share
        known["rank"] = options.shard[0]
    if isinstance(source, IndexedSource):
        known |= {
            "class": type(given).__name__,
            "length": len(given),
            "sampler": _digest(options.sampler),
        }
    if isinstance(given, Mix):
        known["mix"] = [given.lengths, given.parts]
    if options.augment is not None:
        known |= _operations(options.augment)
    if not source.ordered:
        known[STREAMS] = options.producers
    return known


def saved(
    position: dict[str, Any], *, seed: int, of: dict[str, Any], streams: int
) -> dict[str, Any]:
    """The whole state, of a position; `streams`: how many a state before it had, 0 where there was
    none."""
    return {
        "version": VERSION,
        "seed": seed,
        "of": {**of, STREAMS: streams} if streams else of,
        **position,
    }


def restored(
    state: Any, *, of: dict[str, Any], seed: int | None, span: ResumePoint
) -> tuple[ResumePoint, int]:
    """Where to begin, and the root seed; OptionError where the state is not one of this stream."""
    if not isinstance(state, Mapping) or "version" not in state:
        raise OptionError(f"restore({type(state).__name__}): needed what FeedRunner.state() gave")
    if state["version"] != VERSION:
        raise OptionError(
            f"the state has version {state['version']!r}: this fastfeed reads version {VERSION}"
        )
    missing = [key for key in KEYS if key not in state or (state[key] is None and key != "pool")]
    if missing:
        raise OptionError(
            f"the state lacks {', '.join(missing)}: needed all of what FeedRunner.state() gave"
        )
    had = {**state["of"], "seed": state["seed"], STREAMS: None}
    have = {**of, "seed": state["seed"] if seed is None else seed, STREAMS: None}
    differences = [
        f"{name} was {had.get(name)!r} and is {have.get(name)!r}"
        for name in sorted({*had, *have})
        if had.get(name) != have.get(name)
    ]
    if differences:
        raise OptionError(
            f"the state is of another stream: {'; '.join(differences)}. Restore it with the source "
            "and the options that it was saved with. Another number of threads and processes is no "
            "difference"
        )
    try:
        counts = (int(state["batches"]), int(state["records"]))
        begin = replace(
            span, epoch=int(state["epoch"]), run_first=int(state["run_first"]), counts=counts
        )
        sizes = {int(stream): int(size) for stream, size in state["sizes"].items()}
        begin = replace(begin, starts=starts_of(state), pool=state["pool"], sizes=sizes)
        if STREAMS in of:
            begin = replace(begin, streams=int(state["of"][STREAMS]))
        if begin.streams <= max(begin.starts, default=0 if STREAMS in of else ONLY):
            raise ValueError(f"{begin.streams} streams")
        if not (begin.epoch >= begin.run_first >= 0 and min(counts) >= 0):
            raise ValueError(
                f"epoch {begin.epoch} of a run from {begin.run_first}, {counts[0]} batches"
            )
        return begin, int(state["seed"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OptionError(
            f"the state is damaged ({message_of(error)}): needed what FeedRunner.state() gave, "
            "unchanged"
        ) from error


def warn_of_costs(source: Source, span: ResumePoint, *, producers: int) -> None:
    """Says what it costs where a stream can only be read from its beginning, and who has nothing to
    do."""
    if 0 < span.streams < producers:
        LOG.warning(
            "%d of %d producers have nothing to do: the state is of %d producers, each with a "
            "stream of its own",
            *(producers - span.streams, producers, span.streams),
        )
    passed = [start.first for start in span.starts.values()]
    where = "at the end of" if max(passed, default=0) >= DONE else f"{sum(passed)} items into"
    takes_start = isinstance(source, CallableSource) and source.takes_worker
    if any(passed) and not isinstance(source, IndexedSource) and not takes_start:
        how = "let the callable take `worker` and begin at worker.start, or hand in an indexable"
        warnings.warn(
            f"the state is {where} the epoch, and the source can only be read from its beginning: "
            "what was had is made again and passed over, which takes as long as it did before. To "
            f"begin at once, {how}",
            FeedWarning,
            stacklevel=3,
        )


def _operations(augment: Augment) -> dict[str, str]:
    """One entry each, so that a difference is told by what differs; who carries them out makes
    none."""
    rest = (augment.images, augment.masks, augment.boxes, augment.labels, augment.draws)
    named = {f"augment[{n}]": repr(op) for n, op in enumerate(augment.operations)}
    return {**named, "augment's images, masks, boxes, labels, draws": repr(rest)}


def _digest(sampler: Any) -> str | None:
    """What tells a sampler from others of its class: the arrays of numbers that it holds, or is. A
    single number may be a counter, but for our own."""
    if sampler is None:
        return None
    plain = isinstance(sampler, (list, tuple, range, np.ndarray))
    held = [sampler] if plain else getattr(sampler, "__dict__", {}).values()
    kinds = (
        list,
        tuple,
        range,
        np.ndarray,
        *((int,) if isinstance(sampler, (Weighted, Balanced)) else ()),
    )
    numbers = [np.asarray(h) for h in held if isinstance(h, kinds)]
    sums = [zlib.crc32(n.tobytes()) for n in numbers if n.dtype.kind in "biuf"]
    return f"{type(sampler).__name__} {'-'.join(f'{s:08x}' for s in sums)}".strip()


def _shuffle(shuffle: bool | Shuffle | None) -> Any:
    if isinstance(shuffle, Shuffle):
        return [shuffle.capacity, shuffle.min_after_dequeue]
    return bool(shuffle)
