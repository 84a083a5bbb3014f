"""Effects of paired blocks, and their intervals."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.diagnose.interventions.effects import T_OF_PAIRS, effect_of, pairs_of

PERIODS = st.lists(st.floats(0.001, 0.004), min_size=2, max_size=8)
PAIRS = st.sampled_from(sorted(T_OF_PAIRS)).flatmap(
    lambda count: st.lists(st.floats(-3, 3), min_size=count, max_size=count)
)


@given(PAIRS)
def test_the_interval_holds_the_effect(pairs: list[float]) -> None:
    effect, (low, high) = effect_of(pairs)
    assert low <= effect + 1e-9 and effect <= high + 1e-9
    assert effect_of(pairs[::-1])[0] == pytest.approx(effect)
    wider = effect_of([3 * one for one in pairs])[1]
    assert low > -1 and wider[0] > -1


def test_the_interval_holds_the_truth_in_95_of_100_cases() -> None:
    draw = random.Random(0)
    for count in T_OF_PAIRS:
        held = 0
        for _ in range(4000):
            low, high = effect_of([draw.gauss(0.1, 0.05) for _ in range(count)])[1]
            held += low < 0.10517 < high
        assert 0.94 < held / 4000 < 0.96, count


@given(PERIODS, st.lists(st.floats(0.001, 0.004), min_size=4, max_size=16), PERIODS)
def test_pairs_do_not_depend_on_the_unit(
    first: list[float], dosed: list[float], last: list[float]
) -> None:
    pairs = pairs_of((first, last), dosed, usual=first)
    assert len(pairs) == 2
    one, two, three = ([one * 3600 for one in block] for block in (first, dosed, last))
    assert pairs_of((one, three), two, usual=one) == pytest.approx(pairs)


@given(st.floats(0.5, 2.0), st.floats(-0.03, 0.03))
def test_a_drift_is_no_effect(ratio: float, drift: float) -> None:
    """A loop that gets slower from block to block, by equal ratios."""
    blocks = [[0.01 * (1 + drift) ** i] * 4 for i in range(4)]
    dosed = [one * ratio for one in blocks[1] + blocks[2]]
    pairs = pairs_of((blocks[0], blocks[3]), dosed, usual=[0.01] * 20)
    effect, _ = effect_of(pairs * 2)
    assert effect == pytest.approx(ratio - 1)


@pytest.mark.parametrize("block", range(3))
def test_a_pause_in_a_block(block: int) -> None:
    blocks = [[0.01] * 4, [0.012] * 8, [0.01] * 4]
    assert pairs_of((blocks[0], blocks[2]), blocks[1], usual=[0.01] * 50) != []
    blocks[block][2] = 0.5
    assert pairs_of((blocks[0], blocks[2]), blocks[1], usual=[0.01] * 50) == []
    assert pairs_of((blocks[0], blocks[2]), blocks[1], usual=[0.01, 0.01, 0.01, 0.5] * 10) != [], (
        "steps are often so long"
    )


@pytest.mark.parametrize("lengths", [(1, 8, 4), (4, 3, 4), (4, 8, 1), (0, 0, 0)])
def test_blocks_that_are_too_short(lengths: tuple[int, int, int]) -> None:
    first, dosed, last = ([0.01] * length for length in lengths)
    assert pairs_of((first, last), dosed, usual=[]) == []
