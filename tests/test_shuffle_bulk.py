"""Several batches of a shuffle pool in one go are those that are drawn one by one, whatever lies ready."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed import Shuffle, StateError
from fastfeed.batch import Batch
from fastfeed.collate import ALIGN
from fastfeed.shuffle import BulkPool, ShufflePool
from tests.pools import batch_of, drawn, lasts, lengths, numbers, plan, same, sizes


@st.composite
def rooms(draw: Any) -> tuple[Shuffle, dict[str, Any]]:
    """The room that is drawn from, and the options of a pool that has it beside its slack."""
    size, least, at_once = draw(st.integers(1, 8)), draw(st.integers(0, 20)), draw(st.integers(1, 5))
    room = Shuffle(least + size + draw(st.integers(0, 40)), least)
    wide = Shuffle(room.capacity + (at_once - 1) * size, least)
    return room, {"shuffle": wide, "batch_size": size, "at_once": at_once, "last_batch": draw(lasts)}


def all_of(pool: BulkPool, lengths: list[int], cuts: list[int], ready: list[bool]) -> tuple[list[Batch | None], int]:
    """Every batch, with None behind each epoch, where more is pushed than must be as long as some is `ready`; and the
    most that were drawn at once."""
    actions, more, found, most = plan(lengths, cuts), cycle([*ready, False]), [], 0
    while True:
        while pool.wants() or (pool.has_room and next(more)):
            next(actions)(pool)
        if pool.finished:
            return found, most
        some = pool.draw_some()
        most = max(most, len(some))
        found += some or [None]
        if not some:
            pool.turn()


@given(rooms(), lengths, sizes, st.lists(st.booleans(), max_size=9))
def test_what_is_drawn_does_not_follow_from_how_much_is_drawn_at_once(
    room: tuple[Shuffle, dict[str, Any]], lengths: list[int], cuts: list[int], ready: list[bool]
) -> None:
    alone, options = room
    one_by_one = {"batch_size": options["batch_size"], "last_batch": options["last_batch"]}
    single = ShufflePool(alone, **one_by_one, seed=5)
    pool = BulkPool(**options, seed=5)
    found, most = all_of(pool, lengths, cuts, ready)
    assert same(drawn(single, plan(lengths, cuts)), found)
    assert most <= options["at_once"]
    assert (pool.dropped, pool.held) == (single.dropped, 0)
    for batch in filter(None, found):
        assert batch.rows == len(batch.leaves[0]) and batch.nbytes == sum(x.nbytes for x in batch.leaves)


def test_where_much_lies_ready_much_is_drawn_at_once() -> None:
    options = {"batch_size": 4, "at_once": 3, "last_batch": "keep", "seed": 1}
    assert all_of(BulkPool(Shuffle(40, 8), **options), [400], [4], [True] * 9)[1] == 3
    in_time = BulkPool(Shuffle(40, 8), **options)
    in_time_batches, most = all_of(in_time, [400], [4], [])
    assert most == 3, "at the end nothing else is awaited"
    assert len(in_time_batches) == 101


def test_no_more_is_drawn_than_lies_there() -> None:
    pool, actions = BulkPool(Shuffle(40, 8), batch_size=4, at_once=3, last_batch="keep", seed=1), plan([400], [4])
    for _ in range(30):
        while pool.wants():
            next(actions)(pool)
        assert len(pool.draw_some()) == 1
    next(actions)(pool)
    next(actions)(pool)
    assert len(pool.draw_some()) == 2
    assert pool.has_room


def test_the_room_is_never_more_than_was_said() -> None:
    pool, actions = BulkPool(Shuffle(40, 8), batch_size=4, at_once=3, last_batch="keep", seed=1), plan([400], [4])
    held = []
    for _ in range(20):
        while pool.has_room:
            next(actions)(pool)
        held.append(pool.held)
        pool.draw_some()
    assert max(held) == 40
    while pool.has_room:
        next(actions)(pool)
    with pytest.raises(StateError, match="does not want more"):
        pool.push(batch_of(numbers([1])))


def test_batches_drawn_at_once_are_aligned_where_their_bytes_are() -> None:
    pool = BulkPool(Shuffle(40, 8), batch_size=4, at_once=3, last_batch="keep", seed=1)
    while pool.has_room:
        pool.push(Batch((np.zeros((4, 16), np.float32),), 4, 256))
    addresses = [batch.leaves[0].ctypes.data % ALIGN for batch in pool.draw_some()]
    assert addresses == [0, 0]


def test_nothing_is_kept_of_objects_that_were_drawn() -> None:
    pool = BulkPool(Shuffle(8, 0), batch_size=2, at_once=2, last_batch="keep", seed=1)
    words = np.empty(8, object)
    words[:] = [b"%d" % i for i in range(8)]
    pool.push(Batch((words,), 8, 100))
    taken = [word for batch in pool.draw_some() for word in batch.leaves[0]]
    kept = pool._store._columns[0]._records
    assert not set(taken) & set(kept.tolist())
    assert len(taken) == 4
