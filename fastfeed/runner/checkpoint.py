"""The state of a run as JSON: the batches that were consumed, and a fingerprint of the stream. The
state of another stream raises an error that lists the differences."""

from __future__ import annotations

import json
import logging
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

# imported here and not at the first use: a Ctrl-C is lost while numpy loads it
from numpy.random import SeedSequence

from fastfeed.core.position import ALL_DONE, ONLY_STREAM, starts_of, whole
from fastfeed.core.shard_address import ShardAddress
from fastfeed.engine.epoch_schedule import FOREVER, ResumePoint
from fastfeed.errors import FeedWarning, OptionError, message_of
from fastfeed.mix import Mix
from fastfeed.options import FeedOptions, Shuffle
from fastfeed.samplers import FIXED_SAMPLERS
from fastfeed.source import CallableSource, IndexedSource, SharedSource, Source

if TYPE_CHECKING:
    from fastfeed.augment.spec import Augment

LOG = logging.getLogger("fastfeed")
STATE_VERSION = 1
MOST_STREAMS, MAX_SEED = 2**20, 2**1024  # beyond these a state is damaged
STREAM_COUNT_KEY = "producers"  # the number of streams of a callable, which a resumed run keeps
STATE_KEYS = (
    "seed",
    "of",
    "epoch",
    "run_first",
    "streams",
    "batches",
    "records",
    "sizes",
    "pool",
    "check",
)
CHECKED_KEYS = ("seed", "epoch", "run_first", "batches", "records", "sizes", "pool", "claims")
# what the reading of a damaged state raises
DAMAGE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
SOURCE_NAMES = {IndexedSource: "indexable", SharedSource: "iterable", CallableSource: "callable"}


def seed_of(options: FeedOptions) -> int:
    """Return the root seed: all ranks of a job that share out its batches have the same one."""
    if options.seed is not None:
        return int(options.seed)
    if options.stealing:
        return ShardAddress.parse(str(options.shard)).seed
    return int(SeedSequence().generate_state(1)[0])


def fingerprint(given: Any, source: Source, *, options: FeedOptions) -> dict[str, Any]:
    """Return everything that determines the number of each record."""
    known: dict[str, Any] = {
        "source": SOURCE_NAMES[type(source)],
        "records": source.records,
        "world": "stealing" if options.stealing else options.own_shard and options.place[1],
        "remainder": options.remainder,
        "shuffle": _shuffle_state(options.shuffle),
    }
    # record by record
    mixed = bool(options.shuffle) and not (source.indexed and options.shuffle is True)
    if source.records or mixed:
        known["batch_size"] = options.batch_size
    if mixed:
        known["last_batch"] = options.last_batch
    if options.own_shard is not None and not (source.ordered and options.order == "kept"):
        # where the order is kept, every rank is at the same position in its own shard
        known["rank"] = options.place[0]
    if isinstance(source, IndexedSource):
        known |= {
            "class": type(given).__name__,
            "length": len(given),
            "sampler": _sampler_digest(options.sampler),
        }
    if isinstance(given, Mix):
        known["mix"] = [given.lengths, given.parts]
    if options.augment is not None:
        known |= _operation_states(options.augment)
    if not source.ordered:
        known[STREAM_COUNT_KEY] = options.parallel
    return known


def state_of(
    position: dict[str, Any], *, seed: int, stream: dict[str, Any], streams: int
) -> dict[str, Any]:
    """Return the whole state for a position in the stream of this fingerprint. `streams` is the
    number in the state that was restored, or 0."""
    known = {**stream, STREAM_COUNT_KEY: streams} if streams else stream
    return checked({"version": STATE_VERSION, "seed": seed, "of": known, **position})


def checked(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state with its checksum: of the positions only if a pool depends on them."""
    kept = [state.get(key) for key in CHECKED_KEYS] + [state["pool"] and state["streams"]]
    return {**state, "check": zlib.crc32(json.dumps(kept, sort_keys=True).encode())}


def resume_from(state: Any, *, stream: dict[str, Any], seed: int | None) -> tuple[ResumePoint, int]:
    """Return the point to resume from, and the root seed. Raise OptionError for the state of
    another `stream` (a fingerprint), or a damaged one."""
    try:
        return _resume_from(state, stream=stream, seed=seed)
    except OptionError:
        raise
    except DAMAGE as error:
        raise OptionError(
            f"the state is damaged ({message_of(error)}): pass what FeedRunner.state() returned, "
            "unchanged"
        ) from error


def _resume_from(
    state: Any, *, stream: dict[str, Any], seed: int | None
) -> tuple[ResumePoint, int]:
    if not isinstance(state, Mapping) or "version" not in state:
        raise OptionError(f"restore({type(state).__name__}): pass what FeedRunner.state() returned")
    if state["version"] != STATE_VERSION:
        raise OptionError(
            f"the state has version {state['version']!r}: this fastfeed reads version "
            f"{STATE_VERSION}"
        )
    missing = [
        key for key in STATE_KEYS if key not in state or (state[key] is None and key != "pool")
    ]
    if missing:
        raise OptionError(
            f"the state lacks {', '.join(missing)}: pass all that FeedRunner.state() returned"
        )
    _refuse_other_stream(
        {**state["of"], "seed": state["seed"], STREAM_COUNT_KEY: None},
        {**stream, "seed": state["seed"] if seed is None else seed, STREAM_COUNT_KEY: None},
    )
    counts = (whole(state["batches"]), whole(state["records"]))
    begin = ResumePoint(
        epoch=whole(state["epoch"], high=FOREVER),
        starts=starts_of(state),
        run_first=whole(state["run_first"]),
        pool=state["pool"],
        sizes={int(number): whole(size, low=1) for number, size in state["sizes"].items()},
        counts=counts,
        claims=state.get("claims"),
    )
    if state["check"] != checked(dict(state))["check"]:
        raise ValueError("its checksum is another one")
    if begin.claims is not None:  # the job may be in an earlier epoch than the rank
        begin = replace(begin, run_first=min(begin.run_first, begin.epoch))
    least = ONLY_STREAM
    if STREAM_COUNT_KEY in stream:
        streams, least = whole(state["of"][STREAM_COUNT_KEY], low=1, high=MOST_STREAMS), 0
        begin = replace(begin, streams=streams)
    if any(not least <= number < max(begin.streams, least + 1) for number in begin.starts):
        raise ValueError(f"{begin.streams} streams")
    if begin.epoch < begin.run_first:
        raise ValueError(f"epoch {begin.epoch} of a run from {begin.run_first}")
    return begin, whole(state["seed"], high=MAX_SEED)


def _refuse_other_stream(saved: dict[str, Any], present: dict[str, Any]) -> None:
    """Raise OptionError with the differences of two fingerprints."""
    differences = [
        f"{name} was {saved.get(name)!r} and is {present.get(name)!r}"
        for name in sorted({*saved, *present})
        if saved.get(name) != present.get(name)
    ]
    if differences:
        raise OptionError(
            f"the state is of another stream: {'; '.join(differences)}. Restore it with the source "
            "and the options that it was saved with; only the number of threads and processes may "
            "differ"
        )


def warn_of_costs(source: Source, resume: ResumePoint, *, producers: int) -> None:
    """Warn about producers without a stream, and about a source that can only be read from its
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
        solution = "let the callable take `worker` and begin at worker.start, or pass an indexable"
        warnings.warn(
            f"the state is {where} the epoch, and the source can be read only from its beginning: "
            "items that were consumed are produced again and skipped, which takes as long as "
            f"before. To begin at once, {solution}",
            FeedWarning,
            stacklevel=3,
        )


def _operation_states(augment: Augment) -> dict[str, str]:
    """Return one entry for each operation, so that a difference names it; the executor may
    differ."""
    named = {f"augment[{n}]": repr(op) for n, op in enumerate(augment.operations)}
    others = (augment.images, augment.masks, augment.boxes, augment.draws)
    return {**named, "augment's images, masks, boxes, draws": repr(others)}


def _sampler_digest(sampler: Any) -> str | None:
    """Return text that distinguishes a sampler from others of its class: checksums of the arrays of
    numbers that it is, or holds.

    Single numbers are left out, because they may be counters, except in the samplers of fastfeed.
    """
    if sampler is None:
        return None
    plain = isinstance(sampler, (list, tuple, range)) or hasattr(sampler, "dtype")
    held = [sampler] if plain else getattr(sampler, "__dict__", {}).values()
    own = (int,) if isinstance(sampler, FIXED_SAMPLERS) else ()
    kinds = (list, tuple, range, np.ndarray, *own)
    numbers = [np.asarray(h) for h in held if plain or isinstance(h, kinds)]
    sums = [zlib.crc32(n.tobytes()) for n in numbers if n.dtype.kind in "biuf"]
    return f"{type(sampler).__name__} {'-'.join(f'{s:08x}' for s in sums)}".strip()


def _shuffle_state(shuffle: bool | Shuffle | None) -> Any:
    if isinstance(shuffle, Shuffle):
        return [shuffle.capacity, shuffle.min_after_dequeue]
    return bool(shuffle)
