"""A mix has its proportions in every window, and neither loses nor repeats a record wrongly."""

from __future__ import annotations

import pickle
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfeed import OptionError, Shard
from fastfeed.core.order import Recipe, order_of
from fastfeed.source.mix import MAX_PERIOD, Mix

parts = st.lists(st.integers(1, 60), min_size=1, max_size=9)
sizes_and_parts = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 30)), min_size=1, max_size=6
)


def flat(mix: Mix, *, shuffled: bool = False, epoch: int = 0) -> list[int]:
    order = mix.order(3, epoch, shuffled=shuffled)
    assert order.length == len(mix)
    return order.indices(0, order.length)


def by_source(mix: Mix, sizes: list[int], found: list[int]) -> list[list[int]]:
    """Return the indices of each source within itself, in the order of `found`."""
    starts = np.cumsum([0, *sizes])
    assert mix.size == starts[-1]
    return [[i - a for i in found if a <= i < b] for a, b in pairwise(starts)]


def worst_window(turns: np.ndarray, shares: list[Fraction]) -> Fraction:
    """Return the largest difference, over all windows and sources, of the count from n x share."""
    worst = Fraction(0)
    for number, share in enumerate(shares):
        count = np.concatenate([[0], np.cumsum(turns == number)])
        off = count * share.denominator - np.arange(len(count)) * share.numerator
        worst = max(worst, Fraction(int(off.max() - off.min()), share.denominator))
    return worst


@settings(max_examples=80)
@given(parts)
def test_every_window_has_the_proportions(weights: list[int]) -> None:
    length = 3 * sum(weights) + 50
    mix = Mix([(range(length), weight) for weight in weights])
    turns = np.array(flat(mix)) // length
    assert len(turns) >= length
    assert worst_window(turns, [Fraction(w, sum(weights)) for w in weights]) < 2


@pytest.mark.parametrize(
    "weights",
    [
        [0.7, 0.1, 0.1, 0.1],
        [0.9] + [0.001] * 100,
        [1 / 3, 2 / 3],
        [1e300, 2e300],
        [1, 65535],
        [1e-3, 2e-3],
    ],
)
def test_weights_that_are_hard(weights: list[float]) -> None:
    exact = [Fraction(w).limit_denominator(10**6) if w < 1e6 else Fraction(w) for w in weights]
    mix = Mix([(range(70_000), weight) for weight in weights])
    turns = np.array(flat(mix)) // 70_000
    assert worst_window(turns, [w / sum(exact) for w in exact]) < 2
    assert [Fraction(p, sum(mix.parts)) for p in mix.parts] == [w / sum(exact) for w in exact]


def test_weights_with_no_small_integers_are_very_near() -> None:
    mix = Mix([(range(1_234_567), 1_234_567), (range(7_654_321), 7_654_321)])
    assert abs(mix.parts[0] / sum(mix.parts) - 1_234_567 / mix.size) < 1e-7
    assert mix.size - len(mix) <= 1


@pytest.mark.slow
@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=20))
@settings(max_examples=50)
def test_weights_are_kept_within_a_bound(weights: list[float]) -> None:
    parts_ = np.array(Mix([(range(9), weight) for weight in weights]).parts)
    assert parts_.sum() <= MAX_PERIOD
    assert abs(parts_ / parts_.sum() - np.array(weights) / sum(weights)).max() < 2e-5


@given(sizes_and_parts, st.booleans())
def test_it_ends_with_the_first(given_: list[tuple[int, int]], shuffled: bool) -> None:
    sizes = [size for size, _ in given_]
    mix = Mix([(range(size), weight) for size, weight in given_])
    found = flat(mix, shuffled=shuffled)
    assert len(set(found)) == len(found), "nothing comes twice"
    assert any(
        len(own) == size for own, size in zip(by_source(mix, sizes, found), sizes, strict=True)
    )
    longer = flat(Mix([(range(size + 99), weight) for size, weight in given_]))
    offsets = np.cumsum([0] + [size + 99 for size in sizes])
    turn = int(np.searchsorted(offsets, longer[len(found)], side="right")) - 1
    assert len(by_source(mix, sizes, found)[turn]) == sizes[turn], (
        "the next one would be of a source that has no more"
    )


@given(sizes_and_parts, st.booleans())
def test_it_ends_with_all(given_: list[tuple[int, int]], shuffled: bool) -> None:
    sizes = [size for size, _ in given_]
    mix = Mix([(range(size), weight) for size, weight in given_], stop="all")
    found = flat(mix, shuffled=shuffled)
    assert set(found) == set(range(mix.size)), "every record comes"
    assert set(found[:-1]) != set(range(mix.size)), "and the epoch ends with the last of them"
    for own, size in zip(by_source(mix, sizes, found), sizes, strict=True):
        counts = Counter(own)
        assert max(counts.values()) - min(counts.values()) <= 1, "a pass is whole before the next"
        for start in range(0, len(own), size):
            assert len(set(own[start : start + size])) == len(own[start : start + size])


def test_each_pass_epoch_and_source_has_an_order_of_its_own() -> None:
    mix = Mix([(range(50), 1), (range(200), 1), (range(50), 1)], stop="all")
    first, _, third = by_source(mix, [50, 200, 50], flat(mix, shuffled=True))
    passes = [first[:50], first[50:100], first[100:150], third[:50]]
    passes.append(by_source(mix, [50, 200, 50], flat(mix, shuffled=True, epoch=1))[0][:50])
    assert len(set(map(tuple, passes))) == 5
    assert all(sorted(one) == list(range(50)) for one in passes)
    assert flat(mix, shuffled=True) == flat(mix, shuffled=True)
    assert by_source(mix, [50, 200, 50], flat(mix))[0][:51] == [*range(50), 0]


def test_huge_sources_cost_nothing() -> None:
    mix = Mix([(range(10**12), 3), (range(10**15), 1)])
    order = mix.order(0, 0, shuffled=True)
    found = order.indices(10**12, 10**12 + 4000)
    assert len(set(found)) == 4000
    assert sum(i < 10**12 for i in found) == 3000


def test_parts_in_any_order_agree_with_the_whole() -> None:
    mix = Mix([(range(700), 0.9), (range(10_000), 0.1)], stop="all")
    expected = flat(mix, shuffled=True)
    order = mix.order(3, 0, shuffled=True)
    for start in (90_000, 5, 40_000, 4090, 0):
        assert order.indices(start, start + 32) == expected[start : start + 32]
    recipes = [Recipe(shard=Shard(rank, 3, "drop")) for rank in range(3)]
    shares = [
        order_of(len(mix), seed=3, epoch=0, recipe=recipe, base=order).indices(0, 10**6)
        for recipe in recipes
    ]
    assert [i for row in zip(*shares, strict=True) for i in row] == expected[: len(mix) // 3 * 3]


def test_records_by_flat_index() -> None:
    mix = Mix([(["a", "b"], 1), (np.array([7, 8, 9]), 1)])
    assert mix.size == 5 and len(mix) == 4
    assert [mix[i] for i in range(5)] == ["a", "b", 7, 8, 9]
    for bad in (-1, 5):
        with pytest.raises(
            IndexError, match=f"index {bad} is out of range: the sources .* 5 records"
        ):
            mix[bad]
    again = pickle.loads(pickle.dumps(mix))
    assert flat(again) == flat(mix) == [0, 2, 1, 3]


def test_a_dict_of_sources() -> None:
    assert flat(Mix({range(3): 3, (4, 5): 1})) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({}, r"Mix requires \{source: weight\} or"),
        ([], r"Mix requires \{source: weight\} or"),
        (3, r"Mix requires .*, got int"),
        ([range(3), range(4)], r"Mix requires .*, got list"),
        ([((np.ones(3), np.ones(3)), 1)], r"got tuple\. .*records of columns, .*list\(zip"),
        ([(iter([1]), 1)], r"must have len\(\) and \[index\] .*, got list_iterator"),
        ([("text", 1)], "a source in a mix must have .*, got str"),
        ([({}, 1)], "a source in a mix must have .*, got dict"),
        ([(lambda: 1, 1)], "a source in a mix must have .*, got function"),
        ([(Mix({range(2): 1}), 1)], "must not be a Mix: pass all plain sources to one Mix"),
        ([(range(3), 1), (range(0), 1)], "source 1 of the mix is empty"),
        *(
            ([(range(3), w)], "a weight in a mix must be a finite number > 0, got")
            for w in (0, -1, float("nan"), float("inf"), True, "1", None)
        ),
        (
            [(range(3), 1), (range(3), 1e-6)],
            "source 1 of the mix has 1e-06 of the total weight: every source needs at least "
            f"1/{MAX_PERIOD}",
        ),
    ],
)
def test_wrong_mixes(given_: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Mix(given_)


def test_a_wrong_stop() -> None:
    with pytest.raises(OptionError, match=r"stop must be \"first\" or \"all\", got 'last'"):
        Mix({range(3): 1}, stop="last")


def test_a_length_that_changes() -> None:
    grows = [1, 2]
    mix = Mix([(grows, 1)])
    grows.append(3)
    with pytest.raises(
        OptionError, match=r"sources of constant length, they changed from \[2\] to \[3\]"
    ):
        mix.order(0, 0)
