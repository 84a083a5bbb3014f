"""Hypothesis strategies for tests.helpers.streams: streams with compatible options, and mixes."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from fastfeed import Reorder, Shard, Shuffle
from tests.helpers.streams import (
    BY_INDEX,
    CALLABLES,
    KINDS,
    Case,
)

thread_mixes = st.tuples(st.just(0), st.integers(1, 4))
process_mixes = st.tuples(st.integers(1, 2), st.integers(1, 2))
any_mixes = st.tuples(st.integers(0, 2), st.integers(1, 2))


class Reversed:
    """A user's sampler: every second index, from the last."""

    def indices(self, seed: int, epoch: int, *, length: int) -> list[int]:
        return list(range(length - 1 - epoch % 2, -1, -2)) or [0]


def moved_orders(kind: str) -> list[Any]:
    """Return the orders that depend on timing."""
    return ["any"] if kind in CALLABLES else ["any", Reorder(1), Reorder(5)]


@st.composite
def cases(draw: st.DrawFn, kinds: tuple[str, ...] = tuple(KINDS), *, exact: bool = False) -> Case:
    """Draw streams; exact: only those with every record of an epoch once, in the source's order."""
    kind = draw(st.sampled_from(kinds))
    total, size = draw(st.integers(1, 25)), draw(st.integers(1, 6))
    options: dict[str, Any] = {"epochs": draw(st.none() | st.integers(1, 3))}
    if kind in ("sequence", "iterable", "skipping", "sharing", "copying"):
        options["batch_size"] = draw(st.none() | st.integers(1, 7))
    if not exact:
        orders = st.sampled_from(["kept", *moved_orders(kind)])
        options |= draw(st.fixed_dictionaries({}, optional={"order": orders}))
        options |= draw(_cuts(kind, total))
    if kind == "sequence" and not options["batch_size"]:
        # a smaller batch may only be the last, but another order puts it anywhere
        total = -(-total // size) * size
    options |= draw(_orders(kind, options.get("batch_size") or size))
    if isinstance(options["shuffle"], Shuffle) and "batch_size" in options:
        # a pool of records forms batches of its own
        options["batch_size"] = options["batch_size"] or size
    if options.get("batch_size", 0) is None:
        del options["batch_size"]
    return Case(
        kind, total, size, {name: value for name, value in options.items() if value is not None}
    )


@st.composite
def _cuts(draw: st.DrawFn, kind: str, total: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if kind not in CALLABLES and draw(st.booleans()):
        world = draw(st.integers(1, 3))
        pads = kind in BY_INDEX and draw(st.booleans())
        # a sampler leaves half of the records out: no rank may be left without one
        if pads or (kind == "indexable" and total >= 2 * world):
            rank = draw(st.integers(0, world - 1))
            found["shard"] = Shard(rank, world, "pad" if pads else "drop")
    return found


@st.composite
def _orders(draw: st.DrawFn, kind: str, cut: int) -> dict[str, Any]:
    least = draw(st.integers(0, 8))
    pool = Shuffle(least + cut + draw(st.integers(1, 12)), least)
    ways = [None, False, pool]
    if kind in BY_INDEX:
        ways.append(True)
    found: dict[str, Any] = {"shuffle": draw(st.sampled_from(ways))}
    if (
        kind in ("indexable", "sequence")
        and found["shuffle"] is not True
        and draw(st.integers(0, 3)) == 0
    ):
        found["sampler"] = Reversed()
    return found
