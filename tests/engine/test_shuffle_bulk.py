"""Several batches drawn from a shuffle pool at once equal those drawn one by one, for any timing of
the input."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, cycle, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed import Shuffle, SpecError, StateError
from fastfeed.core.batch import Batch, nbytes_of
from fastfeed.core.collate import ALIGN
from fastfeed.engine.shuffle_pool import ShufflePool
from tests.helpers.pools import Leaves, batch_of, lasts, numbers, same, sizes, words


def pool_of(shuffle: Shuffle, *, at_once: int, **options: Any) -> ShufflePool:
    pool = ShufflePool(shuffle, **options)
    pool.draw_together(at_once)
    return pool


@st.composite
def rooms(draw: Any) -> tuple[Shuffle, dict[str, Any]]:
    """Draw the room of the draws, and the options of a pool that has this room beside its spare
    rows."""
    size, least, at_once = (
        draw(st.integers(1, 8)),
        draw(st.integers(0, 20)),
        draw(st.integers(1, 5)),
    )
    room = Shuffle(least + size + draw(st.integers(0, 40)), least)
    wide = Shuffle(room.capacity + (at_once - 1) * size, least)
    return room, {
        "shuffle": wide,
        "batch_size": size,
        "at_once": at_once,
        "last_batch": draw(lasts),
        "seed": 5,
    }


class Source:
    """Pushes records 0, 1, ... into a pool, in batches of the given sizes in turn, and then ends
    the input."""

    def __init__(self, records: int, cuts: list[int], *, leaves: Leaves = numbers) -> None:
        ends = list(
            accumulate(min(s, records) for s, _ in zip(cycle(cuts), range(records), strict=False))
        )
        self._parts = [range(a, min(b, records)) for a, b in pairwise([0, *ends]) if a < records]
        self._leaves = leaves

    def push(self, pool: ShufflePool) -> None:
        if self._parts:
            pool.push(batch_of(self._leaves(list(self._parts.pop(0)))))
        else:
            pool.end()


def drawn(pool: ShufflePool) -> list[Batch]:
    """Return the next batches, drawn and copied together."""
    chosen = pool.choose()
    batches = pool.copy(chosen)
    pool.give_back(chosen)
    return batches


def all_of(pool: ShufflePool, source: Source, ready: list[bool]) -> list[list[Batch]]:
    """Return every batch, with the number that were drawn at once. More than the minimum is pushed
    while some input is `ready`."""
    more, found = cycle([*ready, False]), []
    while True:
        while pool.wants() or (pool.has_room and next(more)):
            source.push(pool)
        some = drawn(pool)
        if not some:
            assert pool.finished and pool.held == 0
            return found
        found.append(some)


def flat(found: list[list[Batch]]) -> list[Batch | None]:
    return [batch for some in found for batch in some]


def ids(batch: Batch | None) -> list[int]:
    assert batch is not None
    return batch.leaves[0].tolist()


@given(rooms(), st.integers(0, 120), sizes, st.lists(st.booleans(), max_size=9))
def test_what_is_drawn_does_not_follow_from_how_much_is_drawn_at_once(
    room: tuple[Shuffle, dict[str, Any]], records: int, cuts: list[int], ready: list[bool]
) -> None:
    alone, options = room
    pool, single = (
        pool_of(**options),
        pool_of(**{**options, "shuffle": alone, "at_once": 1}),
    )
    found = all_of(pool, Source(records, cuts), ready)
    assert same(flat(all_of(single, Source(records, [1]), [])), flat(found))
    assert max(map(len, found), default=0) <= options["at_once"]
    assert pool.dropped == single.dropped
    for batch in filter(None, flat(found)):
        assert batch.rows == len(batch.leaves[0]) and batch.nbytes == sum(
            map(nbytes_of, batch.leaves)
        )


def test_every_record_of_the_room_is_as_likely_in_every_draw() -> None:
    """This includes places that later records have filled, and places that stay empty."""
    draws, pools = Counter[tuple[int, int]](), 2000
    for seed in range(pools):
        pool = pool_of(Shuffle(6, 1), batch_size=2, at_once=1, last_batch="keep", seed=seed)
        for number, batch in enumerate(flat(all_of(pool, Source(8, [3]), []))):
            draws.update((number, record) for record in ids(batch))
    # Two of records 0 to 2, two of the one that is left and 3 to 6, two of the three that are left
    # and 7, the rest.
    shares = {0: (2 / 3, 2 / 15, 0.1, 0.1), 3: (0, 0.4, 0.3, 0.3), 7: (0, 0, 0.5, 0.5)}
    for record in range(8):
        expected = shares[max(first for first in shares if first <= record)]
        assert [draws[number, record] / pools for number in range(4)] == pytest.approx(
            expected, abs=0.04
        ), record


def test_leaves_of_a_record_stay_together() -> None:
    pool = pool_of(Shuffle(30, 8), batch_size=4, at_once=2, last_batch="keep", seed=1)
    found = [
        batch for batch in flat(all_of(pool, Source(50, [7, 2], leaves=words), [True])) if batch
    ]
    assert sorted(i for batch in found for i in ids(batch)) == list(range(50))
    for batch in found:
        for leaf, expected in zip(batch.leaves, words(ids(batch)), strict=True):
            assert leaf.tolist() == expected.tolist()


def test_what_is_being_copied_is_not_written_over() -> None:
    """A second thread copies while the first continues, also while the pool grows."""
    pool, source = (
        pool_of(Shuffle(40, 8), batch_size=4, at_once=1, last_batch="keep", seed=1),
        Source(400, [4, 9, 30]),
    )
    found, waiting = [], []
    while not pool.finished:
        while pool.wants():
            source.push(pool)
        waiting.append(pool.choose())
        if len(waiting) == 2:  # one batch late
            found += pool.copy(waiting[0])
            pool.give_back(waiting.pop(0))
    assert sorted(i for batch in found for i in ids(batch)) == list(range(400))


OPTIONS: dict[str, Any] = {"batch_size": 4, "at_once": 3, "last_batch": "keep", "seed": 1}


def test_where_much_lies_ready_much_is_drawn_at_once() -> None:
    assert (
        max(map(len, all_of(pool_of(Shuffle(40, 8), **OPTIONS), Source(400, [4]), [True] * 9))) == 3
    )
    in_time = all_of(pool_of(Shuffle(40, 8), **OPTIONS), Source(400, [4]), [])
    assert max(map(len, in_time)) == 3, "at the end nothing else is awaited"
    assert len(flat(in_time)) == 100


def test_no_more_is_drawn_than_lies_there() -> None:
    pool, source = pool_of(Shuffle(40, 8), **OPTIONS), Source(400, [4])
    for _ in range(30):
        while pool.wants():
            source.push(pool)
        assert len(drawn(pool)) == 1
    source.push(pool)
    source.push(pool)
    assert len(drawn(pool)) == 2
    assert pool.has_room


def test_the_room_is_never_more_than_was_said() -> None:
    pool, source = pool_of(Shuffle(40, 8), **OPTIONS), Source(400, [4])
    held = []
    for _ in range(20):
        while pool.has_room:
            source.push(pool)
        held.append(pool.held)
        drawn(pool)
    assert max(held) == 40
    while pool.has_room:
        source.push(pool)
    with pytest.raises(StateError, match="does not want more"):
        pool.push(batch_of(numbers([1])))


def test_batches_drawn_at_once_are_aligned_where_their_bytes_are() -> None:
    pool = pool_of(Shuffle(40, 8), batch_size=4, at_once=3, last_batch="keep", seed=1)
    while pool.has_room:
        pool.push(Batch((np.zeros((4, 16), np.float32),), 4, 256))
    addresses = [batch.leaves[0].ctypes.data % ALIGN for batch in drawn(pool)]
    assert addresses == [0, 0]


def test_nothing_is_kept_of_objects_that_were_drawn() -> None:
    pool = pool_of(Shuffle(8, 0), batch_size=2, at_once=2, last_batch="keep", seed=1)
    words = np.empty(8, object)
    words[:] = [b"%d" % i for i in range(8)]
    pool.push(Batch((words,), 8, 100))
    delivered = [word for batch in drawn(pool) for word in batch.leaves[0]]
    kept = pool._storage._columns[0]._records
    assert not set(delivered) & set(kept.tolist())
    assert len(delivered) == 4


def test_records_that_changed_while_they_waited_are_not_taken_in() -> None:
    pool = pool_of(Shuffle(8, 0), batch_size=2, at_once=1, last_batch="keep", seed=1)
    batch = batch_of(numbers([1, 2, 3]))
    batch.watch("batch 5")
    batch.leaves[0][1] = 7
    with pytest.raises(SpecError, match="batch 5 has changed while it waited"):
        pool.push(batch)
