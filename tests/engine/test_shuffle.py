"""The shuffle pool: every record once in an epoch, drawn uniformly, the same for any division of
the input into batches."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.core.batch import Batch
from fastfeed.core.collate import ALIGN
from fastfeed.engine.shuffle_pool import ShufflePool
from fastfeed.errors import OptionError, StateError
from fastfeed.options import Shuffle
from tests.helpers.pools import (
    Action,
    batch_of,
    drawn,
    ids_of,
    lengths,
    numbers,
    plan,
    ragged,
    rooms,
    same,
    sizes,
    words,
)


@given(rooms(), lengths, sizes, st.booleans())
def test_every_record_once_an_epoch(
    room: dict[str, Any], lengths: list[int], cuts: list[int], lazy: bool
) -> None:
    pool = ShufflePool(**room, seed=1)
    found = drawn(pool, plan(lengths, cuts), lazy=lazy)
    epochs, size = ids_of(found), room["batch_size"]
    assert len(epochs) == len(lengths) and pool.finished and not pool.held
    for epoch, (ids, length) in enumerate(zip(epochs, lengths, strict=True)):
        every = set(range(1000 * epoch, 1000 * epoch + length))
        kept = length if room["last_batch"] == "keep" else length - length % size
        assert len(ids) == len(set(ids)) == kept and set(ids) <= every, (
            "nothing twice, nothing of another epoch"
        )
    assert pool.dropped == sum(lengths) - sum(map(len, epochs))
    for batch in filter(None, found):
        assert same([batch], [batch_of(numbers(batch.leaves[0].tolist()))]), (
            "leaves of different records"
        )
        assert batch.rows == len(batch.leaves[0]) and batch.nbytes == sum(
            x.nbytes for x in batch.leaves
        )


@given(rooms(), lengths, sizes, sizes)
def test_the_cut_of_the_input_and_its_time_change_nothing(
    room: dict[str, Any], lengths: list[int], cuts: list[int], others: list[int]
) -> None:
    want = drawn(ShufflePool(**room, seed=5), plan(lengths, cuts))
    assert same(want, drawn(ShufflePool(**room, seed=5), plan(lengths, others)))
    assert same(want, drawn(ShufflePool(**room, seed=5), plan(lengths, others), lazy=True))


@given(rooms(), lengths, sizes)
def test_bounds(room: dict[str, Any], lengths: list[int], cuts: list[int]) -> None:
    """A draw chooses from the records that are drawable by then, and leaves enough of them unless
    the epoch has ended."""
    shuffle, size = room["shuffle"], room["batch_size"]
    state = Counter[str]()

    def observe(pool: ShufflePool, found: list[Batch | None]) -> None:
        assert pool.held <= shuffle.capacity + max(cuts) - 1
        if found[-1] is None:
            state["draws"], state["epoch"] = 0, state["epoch"] + 1
            return
        state["draws"] += 1
        ready = min(shuffle.capacity, shuffle.min_after_dequeue + size * state["draws"])
        earlier = size * (state["draws"] - 1)
        assert max(found[-1].leaves[0]) - 1000 * state["epoch"] < ready + earlier
        assert found[-1].rows == size or state["draws"] * size >= lengths[state["epoch"]]

    def check(pool: ShufflePool) -> None:
        assert pool.held < shuffle.capacity

    def actions() -> Iterator[Action]:
        for action in plan(lengths, cuts):
            yield lambda pool, a=action: (check(pool), a(pool))

    drawn(ShufflePool(**room, seed=2), actions(), observe=observe)


def test_what_is_drawn_leaves_the_least_number_behind() -> None:
    pool = ShufflePool(Shuffle(50, 20), batch_size=8, seed=0)
    left: list[int] = []
    drawn(pool, plan([1000], [5]), observe=lambda pool, _: left.append(pool.held))
    before_the_end = left[: (1000 - 50) // 8]
    assert min(before_the_end) == 22 and set(before_the_end[10:]) <= set(range(42, 47)), (
        "at first, and when full"
    )
    assert left[-1] == 0


def test_a_seed_and_an_epoch_give_one_order() -> None:
    def order(seed: int, epoch: int) -> list[list[int]]:
        pool = ShufflePool(Shuffle(60, 20), batch_size=8, seed=seed, epoch=epoch)
        return [[i % 1000 for i in ids] for ids in ids_of(drawn(pool, plan([200, 200], [7])))]

    first, second = order(3, 0)
    assert order(3, 0) == [first, second] and order(3, 1)[0] == second, (
        "an epoch does not know those before it"
    )
    assert first != second != order(4, 0)[0] != first


def chi_square(counts: np.ndarray) -> float:
    """Return the deviation from equal counts, in standard deviations of the expected one."""
    freedom = counts.size - 1
    return (
        float((((counts - counts.mean()) ** 2) / counts.mean()).sum() - freedom)
        / (2 * freedom) ** 0.5
    )


def test_positions_are_uniform_where_the_pool_holds_an_epoch() -> None:
    counts, pairs = np.zeros((12, 12)), np.zeros((12, 12))
    for seed in range(3000):
        (ids,) = ids_of(
            drawn(ShufflePool(Shuffle(12, 9), batch_size=3, seed=seed), plan([12], [12]))
        )
        counts[ids, np.arange(12)] += 1
        pairs[ids[0], ids[1]] += 1
    assert all(abs(chi_square(row)) < 4 for row in counts)
    assert abs(chi_square(pairs[~np.eye(12, dtype=bool)])) < 4, (
        "neighbours in a batch are not independent"
    )


def test_how_long_a_record_stays_is_geometric() -> None:
    """In a pool of 8 each draw takes each record with probability 1/8, at any age."""
    many = [
        ids_of(drawn(ShufflePool(Shuffle(8, 7), batch_size=1, seed=s), plan([999], [50])))[0]
        for s in range(12)
    ]
    ages = [
        draw - max(0, record - 7) for ids in many for draw, record in enumerate(ids) if record < 900
    ]
    counts, expected = np.bincount(ages)[:20], len(ages) / 8 * (7 / 8) ** np.arange(20)
    assert abs(((counts - expected) ** 2 / expected).sum() - 20) < 4 * 40**0.5


def test_the_next_epoch_is_there_when_one_is_drained() -> None:
    pool = ShufflePool(Shuffle(40, 20), batch_size=4, seed=1)
    actions = plan([200, 200, 200], [4])
    starts = 0
    while not pool.finished:
        while pool.wants():
            next(actions)(pool)
        if not pool.finished and pool.draw() is None and not pool.finished:
            starts += 1
            assert not pool.wants() and pool.held >= 36
            first = pool.draw()
            assert first is not None and (first.leaves[0] >= 1000 * starts).all()
    assert starts == 2


def test_the_first_batch_does_not_wait_for_the_whole_capacity() -> None:
    pool = ShufflePool(Shuffle(100, 20), batch_size=4, seed=1)
    actions = plan([500], [1])
    pushed: list[int] = []
    for _ in range(30):
        pushed.append(0)
        while pool.wants():
            next(actions)(pool)
            pushed[-1] += 1
        pool.draw()
    assert pushed == [24] + [8] * 19 + [4] * 10


@given(lengths, sizes)
def test_bytes_stay_what_they_are(lengths: list[int], cuts: list[int]) -> None:
    for batch in filter(
        None, drawn(ShufflePool(Shuffle(30, 9), batch_size=4, seed=1), plan(lengths, cuts, words))
    ):
        ids, objects, fixed, mixed = batch.leaves
        assert objects.tolist() == [b"%d\0" % i for i in ids]
        assert fixed.tolist() == mixed.tolist() == [b"x" * (i % 7 + 1) for i in ids]
        assert objects.dtype == object and fixed.dtype.kind == "S"


@given(lengths, st.sampled_from([False, True]))
def test_varying_records_are_padded_to_the_largest_of_their_batch(
    lengths: list[int], whole: bool
) -> None:
    pool = ShufflePool(Shuffle(30, 9), batch_size=4, seed=1, pad=-1)
    for batch in filter(None, drawn(pool, plan(lengths, [7] if whole else [1], ragged))):
        ids, values = batch.leaves
        for i, row in zip(ids, values, strict=True):
            assert row.tolist() == [i] * (i % 5 + 1) + [-1] * (values.shape[1] - i % 5 - 1)
        assert whole or values.shape[1] == max(ids % 5) + 1


def test_a_free_slot_keeps_no_bytes_alive() -> None:
    blob = b"a record" * 100
    leaf = np.empty(4, object)
    leaf[:] = [blob] * 4
    before = sys.getrefcount(blob)
    pool = ShufflePool(Shuffle(8, 0), batch_size=4, seed=1)
    pool.push(batch_of((leaf,)))
    pool.draw()
    assert sys.getrefcount(blob) == before


def test_batches_are_copies_that_tensorflow_can_take() -> None:
    pool, source = ShufflePool(Shuffle(8, 0), batch_size=4, seed=1), np.arange(4.0)
    pool.push(batch_of((source,)))
    source[:] = -1
    batch = pool.draw()
    assert batch is not None and sorted(batch.leaves[0].tolist()) == [0, 1, 2, 3]
    varying, words = ShufflePool(Shuffle(8, 0), batch_size=1, seed=1, pad=0), np.ones((1, 3))
    varying.push(batch_of((words,)))
    words[:] = -1
    padded = varying.draw()
    assert padded is not None and padded.leaves[0].tolist() == [[1, 1, 1]]
    assert batch.leaves[0].ctypes.data % ALIGN == 0


def test_a_pool_that_is_too_small_names_the_right_number() -> None:
    with pytest.raises(
        OptionError,
        match=r"of 8 .* = 28, .*capacity=27.*Shuffle\(capacity=44, min_after_dequeue=20",
    ):
        ShufflePool(Shuffle(27, 20), batch_size=8, seed=0)
    ShufflePool(Shuffle(28, 20), batch_size=8, seed=0)


def test_calls_at_the_wrong_moment() -> None:
    one, pool = batch_of(numbers([1, 2, 3])), ShufflePool(Shuffle(5, 2), batch_size=1, seed=0)
    with pytest.raises(StateError, match="0 records where 3 are needed"):
        pool.draw()
    pool.push(batch_of(numbers([])))
    assert pool.wants() and not pool.held, "an empty batch is nothing"
    pool.push(one)
    with pytest.raises(StateError, match="does not want more"):
        pool.push(one)
    pool.end_epoch()
    pool.end_epoch()
    with pytest.raises(StateError, match="no place yet"):
        pool.end_epoch()
    assert [b is None for b in (pool.draw() for _ in range(5))] == [False, False, False, True, True]
    pool.end()
    assert pool.finished and not pool.wants() and pool.draw() is None


@pytest.mark.parametrize("told", [("end",), ("end_epoch", "end")])
def test_two_ways_to_end(told: tuple[str, ...]) -> None:
    pool = ShufflePool(Shuffle(5, 2), batch_size=2, seed=0)
    pool.push(batch_of(numbers([1, 2, 3])))
    for name in told:
        getattr(pool, name)()
    assert [b and b.rows for b in (pool.draw(), pool.draw(), pool.draw())] == [2, 1, None]
    assert pool.finished


def test_nothing_at_all_is_no_epoch() -> None:
    pool = ShufflePool(Shuffle(5, 2), batch_size=2, seed=0)
    pool.end()
    assert pool.finished
