"""Gains and their intervals."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.diagnose.prove.gains import (
    MIN_SPREAD,
    Pace,
    Spread,
    comparable,
    gain_of,
    pace_of,
    spread_of,
)


def test_the_gain_is_the_ratio_of_the_rates() -> None:
    found = gain_of([10.0, 10.0], [20.0, 20.0], spread=Spread(MIN_SPREAD, 2))
    assert found.speedup == pytest.approx(2.0)
    assert found.interval[0] < 2.0 < found.interval[1]


def test_two_runs_that_agree_by_chance_prove_nothing_fine() -> None:
    low, high = gain_of(
        [10.0, 10.0], [10.2, 10.2], spread=spread_of([[10.0, 10.0], [10.2, 10.2]])
    ).interval
    assert low < 1.0 < high


def test_the_spread_is_that_within_groups() -> None:
    assert spread_of([[10.0, 10.0], [20.0, 20.0]]) == (MIN_SPREAD, 2)
    assert spread_of([[10.0], [20.0]]) == (MIN_SPREAD, 1)
    assert spread_of([[10.0, 11.0], [20.0, 22.0]]).deviation > 0.05


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
    pace = pace_of(times)
    assert len(pace.pauses(pace.long_s)) == 5
    assert pace.rate(pace.long_s) == pytest.approx(20 / 1.19, rel=1e-6)
    assert pace.cycle_s == pytest.approx(1.19)
    assert pace_of(times[:50]).cycle_s == 0.0, "two pauses tell no cycle"


def training(
    step_s: float, *, first: int, seconds: float, epoch: int, pause_s: float
) -> list[float]:
    """Times of the steps in a window of a run that pauses behind each epoch."""
    times, now = [], 0.0
    for number in range(1, 10_000):
        now += step_s
        times.append(now)
        now += pause_s if number % epoch == 0 else 0.0
    begin = times[first]
    return [time - begin for time in times[first:] if time <= begin + seconds]


def test_a_pause_that_one_window_holds_by_chance_is_no_gain() -> None:
    about = {"first": 50, "seconds": 7.0, "epoch": 200, "pause_s": 0.9}
    one, two = (pace_of(training(s, **about)) for s in (1 / 25.2, 1 / 20.0))
    counts = [len(pace.pauses(pace.long_s)) for pace in (one, two)]
    assert counts == [1, 0], "the second window ends before a pause"
    (before,), (after,) = comparable([one], [two])
    assert (before, after) == pytest.approx((25.2, 20.0))


def test_pauses_count_where_all_windows_hold_several() -> None:
    about = {"first": 5, "seconds": 7.0, "epoch": 20, "pause_s": 0.5}
    paces = [pace_of(training(s, **about)) for s in (0.02, 0.01)]
    (before,), (after,) = comparable(paces[:1], paces[1:])
    assert before == pytest.approx(20 / 0.9)
    assert after == pytest.approx(20 / 0.7)


def test_waits_that_come_with_a_change_are_not_left_out() -> None:
    """A runner that makes its batches in bursts: three quick steps, then a wait for more."""
    steps = [0.0102] * 600
    steps[300] = 0.2  # the one pause of the window
    bursts = [0.002, 0.002, 0.002, 0.038] * 200
    (before,), (after,) = comparable([Pace(tuple(steps))], [Pace(tuple(bursts))])
    assert before == pytest.approx(1 / 0.0102)
    assert after == pytest.approx(4 / 0.044)


def paused(step_s: float, pauses: int, *, pause_s: float = 0.9, seconds: float = 7.0) -> Pace:
    """A window with so many pauses, the first of them in its middle."""
    gaps = [step_s] * int((seconds - pauses * pause_s) / step_s)
    for number in range(pauses):
        gaps.insert(len(gaps) * (number + 1) // (pauses + 1), pause_s)
    return Pace(tuple(gaps))


def test_pauses_that_come_with_a_change_are_its_own() -> None:
    """Such as workers that start anew for each epoch. The original counts without the pauses that
    its windows hold by chance: else this change would seem to gain."""
    original = [paused(0.01, 1), paused(0.01, 0), paused(0.01, 2)]
    slower = [Pace(tuple(([0.0055] * 20 + [0.1]) * 33)) for _ in range(3)]
    before, after = comparable(original, slower)
    assert before == pytest.approx([100.0] * 3)
    assert after == pytest.approx([21 / 0.21] * 3)


def test_many_pauses_count_in_both_scripts() -> None:
    (before,), (after,) = comparable([paused(0.01, 5)], [paused(0.01, 10, pause_s=0.4)])
    assert before == pytest.approx(100 / (1 + 5 * 0.9 / 2.5), rel=0.1)
    assert after == pytest.approx(100 / (1 + 10 * 0.4 / 3.0), rel=0.1)


def test_long_gaps_side_by_side_are_no_epochs() -> None:
    """As of a cache that fills: between the first and the last of them lies nothing else."""
    pace = Pace((1.0,) * 4 + (0.05,) * 96)
    assert pace.rate(pace.long_s) == pytest.approx(100 / 8.8)


@given(st.lists(st.lists(st.floats(0.5, 40.0), min_size=5, max_size=40), min_size=1, max_size=3))
def test_a_script_compared_with_itself_gains_nothing(runs: list[list[float]]) -> None:
    """But for pauses that only the script before leaves out."""
    paces = [Pace(tuple(part / 100 for part in gaps)) for gaps in runs]
    before, after = comparable(paces, paces)
    assert all(one >= two * 0.999 for one, two in zip(before, after, strict=True))


def test_the_best_of_many_must_gain_more() -> None:
    few, many = (
        gain_of([10.0] * 3, [10.6] * 3, spread=Spread(0.02, 8), looks=looks) for looks in (1, 12)
    )
    assert few.interval == many.interval
    assert few.least == pytest.approx(few.interval[0], rel=1e-4)
    assert many.least < 1.0 < few.least
