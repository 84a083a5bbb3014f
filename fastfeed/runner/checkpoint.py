"""The state of a run as JSON: the batches that were consumed, and a fingerprint of the stream. The
state of another stream raises an error that lists the differences. The states of all
ranks of a job are one, for another number of ranks."""

from __future__ import annotations

import json
import logging
import warnings
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

# imported here and not at the first use: a Ctrl-C is lost while numpy loads it
from numpy.random import SeedSequence

from fastfeed.core.order import Indices, places_of_rank, rank_length
from fastfeed.core.position import (
    ALL_DONE,
    FROM_THE_START,
    ONLY_STREAM,
    StreamStart,
    starts_of,
)
from fastfeed.core.shard_address import ShardAddress
from fastfeed.engine.epoch_schedule import ResumePoint
from fastfeed.errors import FeedWarning, OptionError, message_of
from fastfeed.options import FeedOptions, Shuffle
from fastfeed.samplers import FIXED_SAMPLERS
from fastfeed.source import CallableSource, IndexedSource, SharedSource, Source
from fastfeed.source.mix import Mix

if TYPE_CHECKING:
    from fastfeed.augment.spec import Augment

LOG = logging.getLogger("fastfeed")
STATE_VERSION = 1
STATE_ENCODER = json.JSONEncoder(sort_keys=True, default=int)  # `int`: integers of numpy
STREAM_COUNT_KEY = "producers"  # the number of streams of a callable, which a resumed run keeps
# what the encoding of a damaged state raises
DAMAGE = (LookupError, TypeError, ValueError, ArithmeticError, RecursionError)
OF_ONE_RANK = ("rank", "world", "remainder")  # in the fingerprint of a stream
SOURCE_NAMES = {IndexedSource: "indexable", SharedSource: "iterable", CallableSource: "callable"}


def seed_of(options: FeedOptions) -> int:
    """Return the root seed: all ranks of a job that share out its batches have the same one."""
    if options.seed is not None:
        return int(options.seed)
    if options.stealing:
        return ShardAddress.parse(str(options.shard)).seed
    return int(SeedSequence().generate_state(1)[0])


def refuse_own_orders(options: FeedOptions, source: Source, *, resumed: bool) -> None:
    """Raise OptionError if ranks without a common seed would each draw another order of records
    that are read by index. A run that is `resumed` has the seed of its state."""
    drawn = options.shuffle is True or isinstance(options.sampler, FIXED_SAMPLERS)
    known = options.seed is not None or resumed or options.place[1] == 1
    if drawn and source.reader.indexed and not known:
        raise OptionError(
            "shard= with shuffle=True or a sampler: must have a seed=, the same one in each rank, "
            "got none. Each rank would draw another order, and some records would be read twice, "
            "others never"
        )


def fingerprint(given: Any, source: Source, *, options: FeedOptions) -> dict[str, Any]:
    """Return everything that determines the number of each record."""
    known: dict[str, Any] = {
        "source": SOURCE_NAMES[type(source)],
        "records": source.reader.records,
        "world": "stealing" if options.stealing else options.own_shard and options.place[1],
        "remainder": options.remainder,
        "shuffle": _shuffle_state(options.shuffle),
    }
    # record by record
    mixed = bool(options.shuffle) and not (source.reader.indexed and options.shuffle is True)
    if source.reader.records or mixed:
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
    """Return a state with its checksum."""
    return {**state, "check": zlib.crc32(_encoded(state))}


def _encoded(state: Mapping[str, Any]) -> bytes:
    kept = {name: value for name, value in state.items() if name != "check"}
    return STATE_ENCODER.encode(kept).encode()


def intact(state: Any) -> dict[str, Any]:
    """Return a state in plain values. Raise OptionError for one of another version, or changed."""
    if not isinstance(state, Mapping) or "version" not in state:
        raise OptionError(f"restore({type(state).__name__}): pass what FeedRunner.state() returned")
    if state["version"] != STATE_VERSION:
        raise OptionError(
            f"the state has version {state['version']!r}: this fastfeed reads version "
            f"{STATE_VERSION}"
        )
    try:
        text = _encoded(state)
        if state["check"] == zlib.crc32(text):
            plain: dict[str, Any] = json.loads(text)
            return plain
        why = "its checksum is another one"
    except DAMAGE as error:
        why = message_of(error)
    raise OptionError(
        f"the state is damaged ({why}): pass what FeedRunner.state() returned, unchanged"
    )


def resume_from(state: Any, *, stream: dict[str, Any], seed: int | None) -> tuple[ResumePoint, int]:
    """Return the point to resume from, and the root seed. Raise OptionError for the state of
    another `stream` (a fingerprint), or a damaged one."""
    state = intact(state)
    _refuse_other_stream(
        {**state["of"], "seed": state["seed"], STREAM_COUNT_KEY: None},
        {**stream, "seed": state["seed"] if seed is None else seed, STREAM_COUNT_KEY: None},
    )
    point = ResumePoint(
        epoch=state["epoch"],
        starts=starts_of(state),
        # a job whose ranks share out the batches may be in an earlier epoch than the rank
        run_first=min(state["run_first"], state["epoch"]),
        pool=state["pool"],
        sizes={int(number): size for number, size in state["sizes"].items()},
        counts=(state["batches"], state["records"]),
        streams=state["of"].get(STREAM_COUNT_KEY, 0),
        claims=state.get("claims"),
    )
    return point, state["seed"]


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


def merged_state(
    states: Sequence[Mapping[str, Any]],
    source: Source,
    *,
    options: FeedOptions,
    stream: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the state of a rank of `stream` (a fingerprint) in a job with other ranks.

    Its first epoch has the records that no rank has consumed, divided anew. Raise OptionError if
    the states are not those of all ranks of one job at one step, and where an order is promised,
    which other ranks cannot keep.
    """
    if not isinstance(source, IndexedSource) or options.order == "kept":
        raise OptionError(
            "restore() of the states of several ranks requires an indexable source and "
            'order="any": the rest of the epoch is divided anew, so no order can be kept. Use as '
            "many ranks as before, and give each its own state"
        )
    states = [intact(state) for state in states]
    _refuse_incomplete(states)
    known, present = (
        {name: value for name, value in each.items() if name not in OF_ONE_RANK}
        for each in (states[0]["of"], stream)
    )
    _refuse_other_stream(known, present)
    epoch, rest = _rest(states, source, options=options)
    own = {name: stream[name] for name in OF_ONE_RANK if name in stream}
    start = {} if rest is None else {"next": 0, "done": [], "part": {}, "rest": rest}
    streams = {str(ONLY_STREAM): start} if start else {}
    first = min(state["run_first"] for state in states)
    own_run = {"epoch": epoch, "run_first": first, "streams": streams}
    return checked({**states[0], "of": {**known, **own}, **own_run})


def _refuse_incomplete(states: Sequence[Mapping[str, Any]]) -> None:
    """Raise OptionError unless these are the states of ranks 0 to world - 1 of one job."""
    worlds = {state["of"]["world"] for state in states}
    if any(worlds) and any("rank" not in state["of"] for state in states):
        raise OptionError(
            'restore() of the states of several ranks: they were saved with order="kept", which '
            'only as many ranks can keep. Save them with order="any", or restore each in its own '
            "rank"
        )
    ranks = sorted(state["of"].get("rank", 0) for state in states)
    world = next(iter(worlds), None)
    if len(worlds) != 1 or ranks != list(range(world or 1)):
        raise OptionError(
            f"restore() needs the state of every rank of one job, got those of ranks {ranks} of "
            f"world {world}: save runner.state() in each rank, and pass all"
        )
    same = [{**state["of"], "rank": 0, "seed": state["seed"]} for state in states]
    if any(one != same[0] for one in same) or any(state["pool"] for state in states):
        raise OptionError(
            "restore() of several states: they differ in more than the rank, or have records in a "
            "shuffle pool. Pass the states of one job, of shuffle=True or False"
        )


def _rest(
    states: Sequence[Mapping[str, Any]], source: IndexedSource, *, options: FeedOptions
) -> tuple[int, list[list[int]] | None]:
    """Return the epoch, and ranges of the positions in it that are left; None: all are."""
    if not source.reader.records and options.batch_size is not None:
        raise OptionError(
            "restore() of several states of ready batches that batch_size= cuts anew: what of them "
            "was delivered is not known in records. Use as many ranks as before, or leave out "
            "batch_size="
        )
    seed, epoch = states[0]["seed"], min(state["epoch"] for state in states)
    starts = [_start(state, epoch) for state in states]
    before = next(start.rest for start in starts if start is not None)
    length = source.order_in(epoch, seed, rest=before, divided=False).length
    left = np.ones(length, bool)
    of, group = states[0]["of"], source.group_size
    world = of["world"] or 1
    each = rank_length(length // group, world, padded=of["remainder"] == "pad") * group
    size = options.batch_size or 1
    whole = each // size * size if options.last_batch == "drop" else each
    over = True  # every rank has consumed its share: what was left out of the epoch stays left out
    for state, start in zip(states, starts, strict=True):
        local = np.arange(each)
        if start is not None:
            local = _consumed(start, size, length=each)
            over = over and len(local) >= whole
        if start is not None and start.part and (options.skips or options.filter is not None):
            option = 'on_error="skip"' if options.skips else "filter="
            raise OptionError(
                f"restore() of several states with {option}: which records of a batch were "
                "delivered is not known. Use as many ranks as before"
            )
        share = (state["of"].get("rank", 0), world)
        left[places_of_rank(local, share, group=group, length=length)] = False
    if left.all() and before is None:
        return epoch, None
    places = np.flatnonzero(left)
    if before is not None:
        places = np.concatenate([np.arange(*part) for part in before])[places]
    _, world = options.place
    dropped = options.remainder == "drop" and len(places) // group < world
    if over or dropped:
        return epoch + 1, None
    rest = _ranges(places)
    source.order_in(epoch, seed, rest=rest)  # raises if it cannot be divided
    return epoch, rest


def _start(state: Mapping[str, Any], epoch: int) -> StreamStart | None:
    """Return what a rank has consumed of the epoch; None: its whole share."""
    start = starts_of(state).get(ONLY_STREAM, FROM_THE_START)
    ahead = state["epoch"] - epoch
    if not ahead:
        return start
    if ahead > 1 or start != FROM_THE_START:
        raise OptionError(
            f"restore() of several states: one rank is in epoch {epoch}, another one in epoch "
            f"{state['epoch']}. Save the states of all ranks after the same step"
        )
    return None


def _consumed(start: StreamStart, size: int, *, length: int) -> Indices:
    """Return the positions in a rank's share that were consumed."""
    whole = np.array([*range(min(start.next, -(-length // size))), *sorted(start.done)], np.int64)
    places = [(whole[:, None] * size + np.arange(size)).reshape(-1)]
    places += [item * size + np.arange(rows) for item, rows in start.part.items()]
    found: Indices = np.concatenate(places)
    return found[found < length]


def _ranges(places: Indices) -> list[list[int]]:
    """Return [start, stop] of each stretch of positions without a gap."""
    ends = np.flatnonzero(np.diff(places) > 1)
    firsts, lasts = places[np.r_[0, ends + 1]], places[np.r_[ends, len(places) - 1]]
    return [[int(a), int(b) + 1] for a, b in zip(firsts, lasts, strict=True)]
