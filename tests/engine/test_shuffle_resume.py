"""A shuffle pool is saved without its records, and continues once they were produced again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.engine.shuffle_pool import ShufflePool, pack_origins
from fastfeed.errors import OptionError, StateError
from fastfeed.options import Shuffle
from tests.helpers.pools import (
    Action,
    Push,
    batch_of,
    drawn,
    lengths,
    numbers,
    plan,
    ragged,
    rooms,
    same,
    sizes,
    words,
)


def restored(state: dict[str, Any], room: dict[str, Any], **options: Any) -> ShufflePool:
    pool = ShufflePool(**room, **options)
    pool.restore(state)
    return pool


def saved(pool: ShufflePool) -> dict[str, Any]:
    """Return the state as a file has it."""
    state = pool.state()
    return json.loads(json.dumps({**state, "origins": pack_origins(state["origins"])}))


def from_epoch(actions: list[Action], epoch: int) -> list[Action]:
    """Return the actions that come after the end of so many epochs."""
    ends = [n for n, action in enumerate(actions) if action is ShufflePool.end_epoch]
    return actions[ends[epoch - 1] + 1 if epoch else 0 :]


@given(rooms(), lengths, sizes, st.sampled_from([numbers, words, ragged]), st.integers(0, 60))
def test_an_interrupted_pool_goes_on_as_if_it_were_not(
    room: dict[str, Any], lengths: list[int], cuts: list[int], leaves: Any, stop: int
) -> None:
    """Interrupt after `stop` pushes, ends and draws. The items are produced again in another order,
    with others among them, and those of the next epoch are pushed again."""
    options = {"seed": 7, "pad": -1 if leaves is ragged else None}
    every = list(plan(lengths, cuts, leaves))
    whole = drawn(ShufflePool(**room, **options), iter(every))
    pool, left = ShufflePool(**room, **options), list(every)
    found = []
    for _ in range(stop):
        if pool.wants():
            left.pop(0)(pool)
        elif not pool.finished:
            found.append(pool.draw())
    if pool.finished:
        return
    state = saved(pool)
    again = restored(state, room, **options)
    assert saved(again) == state, "saved before a record is there"
    assert again.dropped == pool.dropped
    for item in [action for action in every if isinstance(action, Push)][::-1]:
        again.place(item.batch, stream=3, item=item.ids[0])
        assert again.place(item.batch, stream=4, item=item.ids[0]), "not of this pool"
    assert not again.missing
    if state["input"][1]:  # what came of the next epoch is forgotten
        left = from_epoch(every, pool.epoch + 1)
    assert same(whole, found + drawn(again, iter(left)))


def half_full() -> ShufflePool:
    """Return a pool with four records of an item, and three of another."""
    pool = ShufflePool(Shuffle(20, 1), batch_size=6, seed=1)
    pool.push(batch_of(numbers([0, 1, 2, 3])), item=5)
    pool.push(batch_of(numbers([4, 5, 6])), stream=1, item=6)
    pool.end_epoch()
    return pool


def test_what_a_restored_pool_misses() -> None:
    room = {"shuffle": Shuffle(20, 1), "batch_size": 6, "seed": 1}
    pool = restored(half_full().state(), room)
    assert {key: len(slots) for key, slots in pool.missing.items()} == {(0, 5): 4, (1, 6): 3}
    with pytest.raises(StateError, match="misses"):
        pool.draw()
    assert not pool.place(batch_of(numbers([0, 1])), stream=0, item=5)
    assert pool.place(batch_of(numbers([4, 5, 6, 7, 8])), stream=1, item=6)
    assert {key: len(slots) for key, slots in pool.missing.items()} == {(0, 5): 4}
    assert pool.place(batch_of(numbers([0, 1, 2, 3])), stream=0, item=5)
    want = half_full()
    assert same([pool.draw(), pool.draw()], [want.draw(), want.draw()])
    with pytest.raises(OptionError, match="'batch_size': 6.*'batch_size': 7"):
        restored(half_full().state(), {**room, "batch_size": 7})


def test_items_that_come_early_wait_in_the_pool() -> None:
    """They arrive before a missing one, and are drawn as if they had not."""
    room = {"shuffle": Shuffle(8, 2), "batch_size": 2, "seed": 1}
    actions = list(plan([40], [4]))
    whole = drawn(ShufflePool(**room), iter(actions))
    pool, left = ShufflePool(**room), list(actions)
    while pool.wants():
        left.pop(0)(pool)
    pushed = [action for action in actions if action not in left]
    again = restored(saved(pool), room)
    for action in left[:5]:
        action(again)
    for item in pushed:
        assert again.place(item.batch, stream=3, item=item.ids[0])
    assert same(whole, drawn(again, iter(left[5:])))


def test_a_state_is_small() -> None:
    pool, actions = ShufflePool(Shuffle(2000, 1000), batch_size=64, seed=1), plan([5000], [64])
    for _ in range(30):
        while pool.wants():
            next(actions)(pool)
        pool.draw()
    assert len(json.dumps(saved(pool))) < 12_000
