"""The states of all ranks of a job as one, for another number of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastfeed.core.order import Indices, places_of_rank, rank_length
from fastfeed.core.position import FROM_THE_START, ONLY_STREAM, StreamStart, starts_of
from fastfeed.errors import OptionError, message_of
from fastfeed.options import FeedOptions
from fastfeed.runner.checkpoint import DAMAGE, checked
from fastfeed.source import IndexedSource, Source

OF_ONE_RANK = ("rank", "world", "remainder")  # in the fingerprint of a stream


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
    try:
        _refuse_incomplete(states)
        epoch, rest = _rest(states, source, options=options)
        own = {name: stream[name] for name in OF_ONE_RANK if name in stream}
        known = {name: value for name, value in states[0]["of"].items() if name not in OF_ONE_RANK}
        start = {} if rest is None else {"next": 0, "done": [], "part": {}, "rest": rest}
        streams = {str(ONLY_STREAM): start} if start else {}
        first = min(int(state["run_first"]) for state in states)
        own_run = {"epoch": epoch, "run_first": first, "streams": streams}
        return checked({**states[0], "of": {**known, **own}, **own_run})
    except DAMAGE as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(
            f"a state is damaged ({message_of(error)}): pass what FeedRunner.state() returned in "
            "each rank, unchanged"
        ) from error


def _refuse_incomplete(states: Sequence[Mapping[str, Any]]) -> None:
    """Raise OptionError unless these are the states of ranks 0 to world - 1 of one job."""
    if any(state["check"] != checked(dict(state))["check"] for state in states):
        raise ValueError("the checksum of one is another one")
    worlds = {state["of"]["world"] for state in states}
    if any(worlds) and any("rank" not in state["of"] for state in states):
        raise OptionError(
            'restore() of the states of several ranks: they were saved with order="kept", which '
            'only as many ranks can keep. Save them with order="any", or restore each in its own '
            "rank"
        )
    ranks = sorted(int(state["of"].get("rank", 0)) for state in states)
    if len(worlds) != 1 or ranks != list(range(int(worlds.pop() or 1))):
        raise OptionError(
            f"restore() needs the state of every rank of one job, got those of ranks {ranks} of "
            f"world {states[0]['of']['world']}: save runner.state() in each rank, and pass all"
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
    seed, epoch = int(states[0]["seed"]), min(int(state["epoch"]) for state in states)
    starts = [_start(state, epoch) for state in states]
    before = next(start.rest for start in starts if start is not None)
    length = source.order_in(epoch, seed, rest=before, divided=False).length
    left = np.ones(length, bool)
    of, group = states[0]["of"], source.group_size
    world = int(of["world"] or 1)
    each = rank_length(length // group, world, padded=of["remainder"] == "pad") * group
    size = options.batch_size or 1
    whole = each // size * size if options.last_batch == "drop" else each
    over = True  # every rank has consumed its share: what was left out of the epoch stays left out
    for state, start in zip(states, starts, strict=True):
        local = np.arange(each)
        if start is not None:
            local = _consumed(start, size, length=each)
            over = over and len(local) >= whole
        if start is not None and start.part and options.skips:
            raise OptionError(
                'restore() of several states with on_error="skip": which records of a batch were '
                "delivered is not known. Use as many ranks as before"
            )
        share = (int(state["of"].get("rank", 0)), world)
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
    ahead = int(state["epoch"]) - epoch
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
    if max((*start.done, *start.part, 0)) * size > length or max((*start.part.values(), 0)) > size:
        raise ValueError(f"items of a share of {length} records")
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
