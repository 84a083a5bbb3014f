"""A shuffle pool is saved without its records, and continues once they were produced again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.engine.shuffle import Origin, ShufflePool
from fastfeed.errors import OptionError, StateError
from fastfeed.options import Shuffle
from tests.helpers.pools import (
    Push,
    batch_of,
    drawn,
    had,
    lengths,
    numbers,
    plan,
    ragged,
    rooms,
    same,
    sizes,
    words,
)


@given(rooms(), lengths, sizes, st.sampled_from([numbers, words, ragged]), st.integers(0, 60))
def test_an_interrupted_pool_goes_on_as_if_it_were_not(
    room: dict[str, Any], lengths: list[int], cuts: list[int], leaves: Any, stop: int
) -> None:
    """Interrupt after `stop` pushes, ends and draws. The items are produced again in another order,
    with others among them."""
    pool_options = {"seed": 7, "pad": -1 if leaves is ragged else None}
    whole = drawn(ShufflePool(**room, **pool_options), plan(lengths, cuts, leaves))
    pool = ShufflePool(**room, **pool_options)
    actions = plan(lengths, cuts, leaves)
    found = []
    for _ in range(stop):
        if pool.wants():
            next(actions)(pool)
        elif not pool.finished:
            found.append(had(pool))
    state = json.loads(json.dumps(pool.state()))
    again = ShufflePool.restored(state, **room, **pool_options)
    assert again.state() == state, "saved before a record is there"
    for item in [action for action in plan(lengths, cuts, leaves) if isinstance(action, Push)][
        ::-1
    ]:
        for of_next in (False, True):
            again.place(item.batch, stream=3, item=item.ids[0], of_next=of_next)
            again.place(item.batch, stream=4, item=item.ids[0], of_next=of_next)
    assert not again.missing() and (again.held, again.dropped) == (pool.held, pool.dropped)
    assert same(whole, found + drawn(again, actions))


def half_full() -> ShufflePool:
    """Return a pool with four records of item 5 of this epoch and three of item 6 of the next
    one."""
    pool = ShufflePool(Shuffle(20, 4), batch_size=6, seed=1)
    pool.push(batch_of(numbers([0, 1, 2, 3])), item=5, first_row=10)
    pool.end_epoch()
    pool.push(batch_of(numbers([4, 5, 6])), stream=1, item=6)
    return pool


def test_what_a_restored_pool_misses() -> None:
    options = {"shuffle": Shuffle(20, 4), "batch_size": 6, "seed": 1}
    pool = ShufflePool.restored(half_full().state(), **options)
    of_this, of_next = Origin(0, 5, False), Origin(1, 6, True)
    assert pool.missing() == {of_this: [10, 11, 12, 13], of_next: [0, 1, 2]}
    with pytest.raises(StateError, match="misses"):
        pool.draw()
    pool.place(batch_of(numbers([0, 1])), **of_this._asdict(), first_row=10)
    pool.place(batch_of(numbers([4, 5, 6, 7, 8])), **of_next._asdict())
    assert pool.missing() == {of_this: [12, 13]}
    pool.place(batch_of(numbers(list(range(-10, 4)))), **of_this._asdict())
    assert not pool.missing()
    want = half_full()
    assert same([had(pool), had(pool)], [had(want), had(want)])
    with pytest.raises(OptionError, match="'batch_size': 6.*'batch_size': 7"):
        ShufflePool.restored(half_full().state(), **{**options, "batch_size": 7})


def test_a_state_is_small() -> None:
    pool, actions = ShufflePool(Shuffle(2000, 1000), batch_size=64, seed=1), plan([5000], [64])
    for _ in range(30):
        while pool.wants():
            next(actions)(pool)
        had(pool)
    assert len(json.dumps(pool.state())) < 12_000
