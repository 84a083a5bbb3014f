"""The search among noisy windows."""

from __future__ import annotations

import math
import random

import pytest

from fastfeed.tune.count_search import CountSearch, TrainingWindow, mean


def searched(rates: dict[int, float], *, noise: float, seed: int, start: int = 1) -> CountSearch:
    """Search among rates of a training that always waits."""
    rng, most = random.Random(seed), max(rates)
    search, windows = CountSearch(start), 0
    while not search.over:
        rate = rates[search.wanted] * math.exp(rng.gauss(0, noise))
        search.add(TrainingWindow(search.wanted, rate, noise, 0.9, 1.0), most=most)
        windows += 1
        assert windows < 80
    return search


@pytest.mark.parametrize("noise", [0.005, 0.02])
@pytest.mark.parametrize("start", [1, 4, 8])
def test_the_peak_is_found_in_noise(noise: float, start: int) -> None:
    rates = {n: 100 - 4 * (n - 3) ** 2 if n < 4 else 96 / (n - 2.9) ** 0.3 for n in range(1, 9)}
    for seed in range(20):
        found = searched(rates, noise=noise, seed=seed, start=start).count
        assert rates[found] > 0.95 * max(rates.values())


@pytest.mark.parametrize("noise", [0.005, 0.02, 0.06])
def test_where_more_gain_nothing_few_are_kept(noise: float) -> None:
    rates = dict.fromkeys(range(1, 33), 20.0)
    counts = [searched(rates, noise=noise, seed=seed).count for seed in range(50)]
    assert sorted(counts)[len(counts) * 4 // 5] <= 2


def test_what_is_decided_is_told() -> None:
    search = CountSearch(1)
    assert search.add(TrainingWindow(1, 20.0, 0.01, 0.8, 1.0), most=64) is None
    assert search.wanted == 4
    found = search.add(TrainingWindow(4, 80.0, 0.01, 0.0, 0.9), most=64)
    assert found is not None
    assert (found.before.rate, found.after.rate, found.kept) == (20.0, 80.0, True)
    assert search.over
    assert search.count == 4


@pytest.mark.parametrize(("capacity", "kept"), [(16.0, 4), (4.2, 1)])
def test_what_is_not_clear_depends_on_what_is_made(capacity: float, kept: int) -> None:
    search = CountSearch(1)
    while not search.over and search.wanted in (1, 4):
        made = 4.0 if search.wanted == 1 else capacity
        search.add(TrainingWindow(search.wanted, 20.0, 0.2, 0.75, 0.6, made, 0.05), most=4)
    assert search.count == kept


def test_long_windows_count_more() -> None:
    short, long = (
        TrainingWindow(2, rate, error, 0.5, 1.0, seconds=seconds)
        for rate, error, seconds in ((10.0, 0.4, 1.0), (20.0, 0.0, 3.0))
    )
    found = mean([short, long])
    assert (found.rate, found.error, found.seconds) == (17.5, pytest.approx(0.1), 4.0)
