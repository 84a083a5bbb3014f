"""Gains and their intervals."""

from __future__ import annotations

import random

import pytest

from fastfeed.diagnose.prove.gains import MIN_SPREAD, gain_of, spread_of, steady_rate


def test_the_gain_is_the_ratio_of_the_rates() -> None:
    found = gain_of([10.0, 10.0], [20.0, 20.0], spread=MIN_SPREAD)
    assert found.speedup == pytest.approx(2.0)
    assert found.interval[0] < 2.0 < found.interval[1]


def test_two_runs_that_agree_by_chance_prove_nothing_fine() -> None:
    low, high = gain_of(
        [10.0, 10.0], [10.2, 10.2], spread=spread_of([[10.0, 10.0], [10.2, 10.2]])
    ).interval
    assert low < 1.0 < high


def test_the_spread_is_that_within_groups() -> None:
    assert spread_of([[10.0, 10.0], [20.0, 20.0]]) == MIN_SPREAD
    assert spread_of([[10.0], [20.0]]) == MIN_SPREAD
    assert spread_of([[10.0, 11.0], [20.0, 22.0]]) > 0.05


def test_nineteen_of_twenty_intervals_hold_the_truth() -> None:
    draw, inside = random.Random(0), 0
    for _ in range(400):
        one, two = (
            [rate * draw.lognormvariate(0, 0.05) for _ in range(3)] for rate in (10.0, 15.0)
        )
        low, high = gain_of(one, two, spread=spread_of([one, two])).interval
        inside += low <= 1.5 <= high
    assert inside >= 370


def test_pauses_count_in_whole_periods() -> None:
    times, now = [], 0.0
    for n in range(100):
        now += 1.0 if n % 20 == 19 else 0.01
        times.append(now)
    rate, pauses = steady_rate(times)
    assert pauses == 5
    assert rate == pytest.approx(20 / 1.19, rel=1e-6)
