"""Samplers draw in the promised proportions, and the same for the same seed and epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfeed import OptionError
from fastfeed.core.order import Recipe, order_of
from fastfeed.samplers import Balanced, Weighted


@settings(max_examples=30)
@given(st.lists(st.floats(0, 1e308), min_size=1, max_size=6), st.integers(0, 5))
def test_weights_are_the_proportions(weights: list[float], seed: int) -> None:
    weights = [*weights, 1.0]
    shares = np.array(weights) / max(weights)
    shares /= shares.sum()
    found = Weighted(weights, count=20_000).indices(seed, 0, length=len(weights))
    counts = np.bincount(found, minlength=len(weights))
    assert counts.sum() == 20_000
    assert not counts[shares == 0].any()
    assert (abs(counts - shares * 20_000) <= 6 * np.sqrt(shares * 20_000) + 9).all()


@settings(max_examples=60)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(1, 300))
def test_classes_are_balanced(labels: list[int], count: int) -> None:
    found = Balanced(labels, count).indices(1, 2, length=len(labels))
    assert len(found) == count
    drawn = np.array(labels)[found]
    classes = np.unique(labels)
    by_class = [int((drawn == c).sum()) for c in classes]
    assert max(by_class) - min(by_class) <= 1
    for c in classes:
        by_record = np.bincount(found[drawn == c], minlength=len(labels))[np.array(labels) == c]
        assert by_record.max() - by_record.min() <= 1
    for start in range(0, count - len(classes) + 1, len(classes)):
        assert set(drawn[start : start + len(classes)]) == set(classes)


def test_a_record_comes_again_only_after_all_of_its_class() -> None:
    labels = np.repeat(["cat", "dog"], [3, 40])
    found = Balanced(labels, 240).indices(0, 0, length=43)
    cats = found[found < 3].reshape(-1, 3)
    assert (np.sort(cats, axis=1) == [0, 1, 2]).all()
    assert len({tuple(row) for row in cats.tolist()}) == 6, "each pass has an order of its own"
    assert {int(i) for i in found[0::2] < 3} == {0, 1}, "the order in a round is random"


@pytest.mark.parametrize(
    "sampler", [Weighted(np.arange(50)), Balanced(np.arange(50) % 3), Balanced(list("ab") * 25)]
)
def test_the_same_draw_for_the_same_seed_and_epoch(sampler: Any) -> None:
    draws = {at: tuple(sampler.indices(*at, length=50)) for at in [(0, 0), (0, 1), (1, 0)]}
    assert len(set(draws.values())) == 3
    assert all(tuple(sampler.indices(*at, length=50)) == draw for at, draw in draws.items())
    assert all(len(draw) == 50 for draw in draws.values())
    order = order_of(50, seed=0, epoch=1, recipe=Recipe(sampler=sampler))
    assert tuple(order.indices(0, 50)) == draws[0, 1]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, -1], "must be finite numbers >= 0, got -1 at index 1"),
        ([1, float("nan"), 2], "got nan at index 1"),
        ([float("inf")], "got inf at index 0"),
        ([0, 0.0], "at least one > 0, got 2 zeros"),
        ([], r"got shape \(0,\)"),
        ([[1, 2]], r"got shape \(1, 2\)"),
        (3, r"got shape \(\)"),
        ([[1], [2, 3]], "must be one-dimensional, one for each record"),
        (["a"], "must be numbers"),
    ],
)
def test_wrong_weights(weights: Any, message: str) -> None:
    with pytest.raises(OptionError, match=f"weights .*{message}"):
        Weighted(weights)


@pytest.mark.parametrize("labels", [[], [[1, 2]], 3, [[1], [2, 3]], np.array([1, "a"], object)])
def test_wrong_labels(labels: Any) -> None:
    with pytest.raises(OptionError, match="labels must be"):
        Balanced(labels)


@pytest.mark.parametrize("count", [0, -1, 1.0, True, "2"])
@pytest.mark.parametrize("sampler", [Weighted, Balanced])
def test_wrong_counts(sampler: Any, count: Any) -> None:
    with pytest.raises(OptionError, match="count .*must be None or an integer >= 1, got"):
        sampler([1, 2], count)


@pytest.mark.parametrize("sampler", [Weighted([1, 2]), Balanced([1, 2])])
def test_another_length(sampler: Any) -> None:
    with pytest.raises(
        OptionError,
        match=r"must have one .* for each record, got 2 (weights|labels) for 3 records",
    ):
        sampler.indices(0, 0, length=3)
