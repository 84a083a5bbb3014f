"""Every order is a pure function of its recipe and delivers its records exactly.

Impossible recipes are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfeed import OptionError
from fastfeed.core.order import (
    BLOCK,
    TABLE_LENGTH,
    Order,
    Permutation,
    Recipe,
    Shard,
    order_of,
)

LARGE = TABLE_LENGTH + 1
lengths = st.integers(1, 5000)


def whole(length: int, recipe: Recipe, *, seed: int = 1, epoch: int = 0) -> list[int]:
    order = order_of(length, seed=seed, epoch=epoch, recipe=recipe)
    return order.indices(0, order.length)


def shares(length: int, world: int, remainder: str | None) -> list[list[int]]:
    return [
        whole(length, Recipe(shuffled=True, shard=Shard(rank, world, remainder)))
        for rank in range(world)
    ]


def chi_square(found: np.ndarray, cells: int) -> float:
    """Return by how many standard deviations the counts in range(cells) exceed those of chance."""
    counts = np.bincount(found, minlength=cells)
    assert len(counts) == cells
    expected = len(found) / cells
    return float(
        (((counts - expected) ** 2).sum() / expected - (cells - 1)) / np.sqrt(2 * (cells - 1))
    )


@given(lengths, st.integers(0, 2**70), st.integers(0, 100))
def test_a_permutation_is_a_bijection(length: int, seed: int, epoch: int) -> None:
    found = Permutation(length, seed, epoch).at(np.arange(length))
    assert np.array_equal(np.sort(found), np.arange(length))


@pytest.mark.parametrize("length", [LARGE, 2**21 - 1, 2**21])
def test_a_large_permutation_is_a_bijection(length: int) -> None:
    found = Permutation(length, 3, 1).at(np.arange(length))
    assert (np.bincount(found, minlength=length) == 1).all()


def network(length: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Return the network's permutation for a length that uses a table in practice."""
    monkeypatch.setattr("fastfeed.core.order.TABLE_LENGTH", 0)
    return Permutation(length, seed, 0).at(np.arange(length))


@pytest.mark.parametrize("length", [4, 5, 6, 7, 8, 9, 100, 1023, 1024, 1025])
def test_the_function_alone_is_a_bijection(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(20):
        assert sorted(network(length, seed, monkeypatch)) == list(range(length))


@pytest.mark.parametrize("length", [10**10, 2**40 + 1, 2**62])
def test_a_huge_permutation_costs_nothing_and_repeats_nothing(length: int) -> None:
    order = order_of(length, seed=1, epoch=0, recipe=Recipe(shuffled=True))
    found = order.indices(0, 10_000) + order.indices(length - 10_000, length)
    assert len(set(found)) == 20_000
    assert 0 <= min(found) < length // 100
    assert length - length // 100 < max(found) < length


def test_up_to_a_million_it_is_the_permutation_that_numpy_gives() -> None:
    expected = np.random.default_rng((7, 2)).permutation(1000).tolist()
    assert whole(1000, Recipe(shuffled=True), seed=7, epoch=2) == expected


@pytest.mark.parametrize("length", [1000, LARGE, 10**10])
def test_seeds_and_epochs_give_other_orders(length: int) -> None:
    heads = [
        Permutation(length, seed, epoch).at(np.arange(50)).tolist()
        for seed, epoch in [(0, 0), (0, 1), (1, 0), (1, 1)]
    ]
    assert len(set(map(tuple, heads))) == 4


@pytest.mark.parametrize("length", [1000, LARGE, 3 * 2**29, 10**10])
@pytest.mark.parametrize("place", [0.0, 0.37, 1.0])
def test_every_index_is_as_likely_at_every_position(length: int, place: float) -> None:
    position = np.array([int(place * (length - 1))])
    found = np.concatenate([Permutation(length, seed, 5).at(position) for seed in range(2000)])
    assert abs(chi_square(found * 50 // length, 50)) < 4


@pytest.mark.parametrize("length", [2**20, LARGE, 3 * 2**29, 10**10])
@pytest.mark.parametrize("seed", [0, 1])
def test_neighbours_are_not_related(length: int, seed: int) -> None:
    """Uniform in one epoch, in pairs of neighbours, in their distance and in the lowest bits."""
    found = Permutation(length, seed, 0).at(np.arange(40_000))
    cells = found * 20 // length
    assert abs(chi_square(cells, 20)) < 4
    assert abs(chi_square(cells[:-1] * 20 + cells[1:], 400)) < 4
    assert abs(chi_square((found[1:] - found[:-1]) % length * 20 // length, 20)) < 4
    assert abs(chi_square(found % 16, 16)) < 4
    assert abs(chi_square(found[:-1] % 16 * 16 + found[1:] % 16, 256)) < 4


def some_order(kind: str, length: int) -> Order:
    backwards = range(length - 1, -1, -1)
    recipe = {
        "natural": Recipe(),
        "shuffled": Recipe(shuffled=True),
        "sampled": Recipe(sampler=backwards),
        "shared": Recipe(shuffled=True, shard=Shard(1, 3, "pad")),
    }[kind]
    return order_of(length, seed=2, epoch=1, recipe=recipe)


@settings(max_examples=40)
@given(
    st.sampled_from(["natural", "shuffled", "sampled", "shared"]),
    st.sampled_from([1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5]),
    st.lists(st.tuples(st.integers(-10, 4 * BLOCK), st.integers(-10, 4 * BLOCK)), max_size=8),
)
def test_parts_in_any_order_agree_with_the_whole(
    kind: str, length: int, parts: list[tuple[int, int]]
) -> None:
    order = some_order(kind, length)
    expected = order.indices(0, order.length)
    assert len(expected) == order.length
    assert all(type(index) is int for index in expected[:5])
    for start, stop in parts:
        assert order.indices(start, stop) == expected[start:stop]
    assert order.at(np.arange(order.length)).tolist() == expected


def test_what_was_handed_out_is_no_longer_the_orders() -> None:
    order = order_of(10, seed=0, epoch=0, recipe=Recipe())
    order.indices(0, 10).clear()
    assert order.indices(0, 10) == list(range(10))


@given(lengths, st.integers(1, 40))
def test_ranks_share_an_epoch(length: int, world: int) -> None:
    base = whole(length, Recipe(shuffled=True))
    padded = shares(length, world, "pad")
    each = -(-length // world)
    assert [len(share) for share in padded] == [each] * world
    assert [padded[p % world][p // world] for p in range(each * world)] == [
        base[p % length] for p in range(each * world)
    ]
    if length >= world:
        dropped = shares(length, world, "drop")
        assert [len(share) for share in dropped] == [length // world] * world
        assert sorted(i for share in dropped for i in share) == sorted(
            base[: length // world * world]
        )
    if length % world == 0:
        assert shares(length, world, None) == padded


def test_shards_of_a_huge_epoch() -> None:
    recipes = [Recipe(shuffled=True, shard=Shard(rank, 7, "drop")) for rank in range(7)]
    found = [order_of(10**10, seed=1, epoch=0, recipe=r) for r in recipes]
    assert {order.length for order in found} == {10**10 // 7}
    assert len({i for order in found for i in order.indices(10**9, 10**9 + 500)}) == 3500


def test_a_base_is_shared_instead() -> None:
    base = order_of(10, seed=3, epoch=0, recipe=Recipe(shuffled=True))
    given_ = {"seed": 0, "epoch": 0, "base": base}
    assert order_of(99, recipe=Recipe(shuffled=True), **given_) is base
    share = order_of(99, recipe=Recipe(shard=Shard(1, 2)), **given_)
    assert share.indices(0, 9) == base.indices(0, 10)[1::2]
    with pytest.raises(OptionError, match="a mix has its own order: leave out sampler="):
        order_of(99, recipe=Recipe(sampler=[1]), **given_)


def test_records_that_are_over() -> None:
    with pytest.raises(
        OptionError,
        match=r"10 records are 2 for each of 4 ranks and 2 over.*\"drop\".*\"pad\".* 2 more",
    ):
        shares(10, 4, None)
    with pytest.raises(
        OptionError, match=r"2 records for 3 ranks are 0 for each.*\"drop\".*\"pad\""
    ):
        shares(2, 3, "drop")


@pytest.mark.parametrize(
    "bad", [(3, 3), (-1, 3), (0, 0), (0, -2), (True, 2), (0, 1.0), (1,), (0, 1, 2), 3, "01", None]
)
def test_what_is_no_shard(bad: Any) -> None:
    with pytest.raises(OptionError, match=r"shard.* must be .*, got"):
        Shard.of(bad)


def test_shards() -> None:
    with pytest.raises(OptionError, match="must be 0 to 2 in a world of 3"):
        Shard(3, 3)
    rank, world = Shard.of([np.int64(2), np.uint8(3)]).place
    assert (rank, world) == (2, 3) and type(rank) is type(world) is int
    with pytest.raises(OptionError, match=r"remainder of Shard must be None, .*, got 'wrap'"):
        Shard(0, 2, remainder="wrap")


class Own:
    """A sampler with `indices()`."""

    def __init__(self, repeats: bool) -> None:
        self.repeats = repeats

    def indices(self, seed: int, epoch: int, length: int) -> list[int]:
        return [seed, epoch, length - 1, seed]


class Iterated:
    """A sampler as in torch: a new order for each epoch, and a list called `indices`."""

    indices = (5, 6)

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[int]:
        return iter([np.int64(4), np.uint64(2)])


@pytest.mark.parametrize(
    "sampler", [[4, 2], (4, 2), np.array([4, 2], "u1"), Iterated(), {4: "a", 2: "b"}]
)
def test_samplers(sampler: Any) -> None:
    assert whole(5, Recipe(sampler=sampler)) == [4, 2]
    assert whole(5, Recipe(sampler=sampler, shard=Shard(1, 2))) == [2]


def test_a_sampler_that_is_asked() -> None:
    assert whole(9, Recipe(sampler=Own(True)), seed=3, epoch=1) == [3, 1, 8, 3]
    with pytest.raises(OptionError, match=r"Own repeats 1 of its 4 indices.*repeats = True"):
        whole(9, Recipe(sampler=Own(False)), seed=3, epoch=1)


@pytest.mark.parametrize(
    ("sampler", "said"),
    [
        ([], "at least one index .*, it gave none"),
        ([0, 5], "from 0 to 4, got 5 at position 1; 1 of 2 are out of range"),
        ([0, 1, -1, 9], "got -1 at position 2; 2 of 4"),
        ([2**70], f"got {2**70} at position 0"),
        (np.array([2**64 - 1], "u8"), f"got {2**64 - 1} at position 0"),
        ([0, 1.0], r"must give integers, got 1\.0 at position 1"),
        (np.array([0.0]), "must give integers, got .*0.0.* at position 0"),
        (np.array([[0, 1]]), "must give integers, got array.* at position 0"),
        ([True, False], "must give integers, got True at position 0"),
        (np.array([True]), "must give integers, got .*True.* at position 0"),
        ([0, "1"], "must give integers, got '1' at position 1"),
        ([0, None], "must give integers, got None at position 1"),
        ([0, [1]], r"must give integers, got \[1\] at position 1"),
        ([1, 1, 1, 0], "repeats 2 of its 4 indices"),
        (3, "must be an iterable of indices, or have indices.*, got int"),
        (np.array(3), "must be an iterable of indices, .*, got ndarray"),
    ],
)
def test_wrong_indices(sampler: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        whole(5, Recipe(sampler=sampler))


def test_samplers_that_cannot_be() -> None:
    with pytest.raises(
        OptionError, match=r"iterable again in every epoch, got the iterator list_iterator"
    ):
        Recipe(sampler=iter([1, 2]))
    with pytest.raises(
        OptionError, match="a sampler has its own order: leave out either shuffle= or sampler="
    ):
        Recipe(sampler=[1, 2], shuffled=True)


class Grouped:
    """A sampler whose indices stay together by three."""

    group_size: Any = 3

    def indices(self, seed: int, epoch: int, length: int) -> range:
        return range(length)


def test_ranks_take_whole_groups_in_turn() -> None:
    found = [whole(12, Recipe(sampler=Grouped(), shard=Shard(rank, 2))) for rank in range(2)]
    assert found == [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]]
    recipe = Recipe(sampler=Grouped(), shard=Shard(1, 2, "pad"))
    assert whole(9, recipe) == [3, 4, 5, 0, 1, 2]
    with pytest.raises(OptionError, match="10 indices, which are no whole number of groups of"):
        whole(10, Recipe(sampler=Grouped()))
    with pytest.raises(OptionError, match="3 groups of 3 records are 1 for each of 2 ranks and 1"):
        whole(9, Recipe(sampler=Grouped(), shard=Shard(0, 2)))


@pytest.mark.parametrize("size", [0, 1.5, True, None])
def test_what_is_no_size_of_a_group(size: Any) -> None:
    sampler = Grouped()
    sampler.group_size = size
    with pytest.raises(OptionError, match="group_size .* must be an integer >= 1, got"):
        Recipe(sampler=sampler)
