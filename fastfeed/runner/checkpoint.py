"""The state of a run as JSON: what was consumed, and of which stream. Another stream's state is
refused, with the differences."""

from __future__ import annotations

import logging
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed.core.position import ALL_DONE, ONLY_STREAM, starts_of
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
STREAMS = "producers"  # number of streams of a callable; a resumed run makes as many
KEYS = ("seed", "of", "epoch", "run_first", "streams", "batches", "records", "sizes", "pool")
WORDS = {IndexedSource: "indexable", SharedSource: "iterable", CallableSource: "callable"}


def fingerprint(given: Any, source: Source, *, options: FeedOptions) -> dict[str, Any]:
    """Return everything that decides which record has which number."""
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
        # where the order is kept, every rank is at the same position in its own shard
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
    """Return the whole state for a position. `streams`: how many the state before had, 0 without
    one."""
    return {
        "version": VERSION,
        "seed": seed,
        "of": {**of, STREAMS: streams} if streams else of,
        **position,
    }


def restored(state: Any, *, of: dict[str, Any], seed: int | None) -> tuple[ResumePoint, int]:
    """Return where to begin, and the root seed. Raise OptionError for the state of another stream,
    or one that is damaged."""
    if not isinstance(state, Mapping) or "version" not in state:
        raise OptionError(f"restore({type(state).__name__}): pass what FeedRunner.state() returned")
    if state["version"] != VERSION:
        raise OptionError(
            f"the state has version {state['version']!r}: this fastfeed reads version {VERSION}"
        )
    missing = [key for key in KEYS if key not in state or (state[key] is None and key != "pool")]
    if missing:
        raise OptionError(
            f"the state lacks {', '.join(missing)}: pass all that FeedRunner.state() returned"
        )
    _refuse_other_stream(
        {**state["of"], "seed": state["seed"], STREAMS: None},
        {**of, "seed": state["seed"] if seed is None else seed, STREAMS: None},
    )
    try:
        counts = (int(state["batches"]), int(state["records"]))
        begin = ResumePoint(
            epoch=int(state["epoch"]),
            starts=starts_of(state),
            run_first=int(state["run_first"]),
            pool=state["pool"],
            sizes={int(stream): int(size) for stream, size in state["sizes"].items()},
            counts=counts,
        )
        if STREAMS in of:
            begin = replace(begin, streams=int(state["of"][STREAMS]))
        if begin.streams <= max(begin.starts, default=0 if STREAMS in of else ONLY_STREAM):
            raise ValueError(f"{begin.streams} streams")
        if not (begin.epoch >= begin.run_first >= 0 and min(counts) >= 0):
            raise ValueError(
                f"epoch {begin.epoch} of a run from {begin.run_first}, {counts[0]} batches"
            )
        return begin, int(state["seed"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OptionError(
            f"the state is damaged ({message_of(error)}): pass what FeedRunner.state() returned, "
            "unchanged"
        ) from error


def _refuse_other_stream(had: dict[str, Any], have: dict[str, Any]) -> None:
    """Raise OptionError with the differences of two fingerprints."""
    differences = [
        f"{name} was {had.get(name)!r} and is {have.get(name)!r}"
        for name in sorted({*had, *have})
        if had.get(name) != have.get(name)
    ]
    if differences:
        raise OptionError(
            f"the state is of another stream: {'; '.join(differences)}. Restore it with the source "
            "and the options that it was saved with; only the number of threads and processes may "
            "differ"
        )


def warn_of_costs(source: Source, resume: ResumePoint, *, producers: int) -> None:
    """Warn about producers without a stream, and about a source that can be read only from its
    beginning."""
    if 0 < resume.streams < producers:
        LOG.warning(
            "%d of %d producers have nothing to do: the state is of %d producers, each with a "
            "stream of its own",
            *(producers - resume.streams, producers, resume.streams),
        )
    passed = [start.first for start in resume.starts.values()]
    where = "at the end of" if max(passed, default=0) >= ALL_DONE else f"{sum(passed)} items into"
    takes_start = isinstance(source, CallableSource) and source.takes_worker
    if any(passed) and not isinstance(source, IndexedSource) and not takes_start:
        how = "let the callable take `worker` and begin at worker.start, or pass an indexable"
        warnings.warn(
            f"the state is {where} the epoch, and the source can be read only from its beginning: "
            "items that were consumed are produced again and skipped, which takes as long as "
            f"before. To begin at once, {how}",
            FeedWarning,
            stacklevel=3,
        )


def _operations(augment: Augment) -> dict[str, str]:
    """Return one entry for each operation, so that a difference names it. The executor is no part
    of it."""
    rest = (augment.images, augment.masks, augment.boxes, augment.labels, augment.draws)
    named = {f"augment[{n}]": repr(op) for n, op in enumerate(augment.operations)}
    return {**named, "augment's images, masks, boxes, labels, draws": repr(rest)}


def _digest(sampler: Any) -> str | None:
    """Return what distinguishes a sampler from others of its class: checksums of the arrays of
    numbers that it holds, or is. A single number may be a counter, except in fastfeed's own."""
    if sampler is None:
        return None
    plain = isinstance(sampler, (list, tuple, range, np.ndarray))
    held = [sampler] if plain else getattr(sampler, "__dict__", {}).values()
    own = (int,) if isinstance(sampler, (Weighted, Balanced)) else ()
    kinds = (list, tuple, range, np.ndarray, *own)
    numbers = [np.asarray(h) for h in held if isinstance(h, kinds)]
    sums = [zlib.crc32(n.tobytes()) for n in numbers if n.dtype.kind in "biuf"]
    return f"{type(sampler).__name__} {'-'.join(f'{s:08x}' for s in sums)}".strip()


def _shuffle(shuffle: bool | Shuffle | None) -> Any:
    if isinstance(shuffle, Shuffle):
        return [shuffle.capacity, shuffle.min_after_dequeue]
    return bool(shuffle)
