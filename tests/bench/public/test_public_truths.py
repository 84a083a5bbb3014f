from __future__ import annotations

import pytest

from bench.public.recipe import Recipe, Variant
from bench.public.score import score
from bench.public.truths import expected, input_helps, truth
from fastfeed.diagnose.prove.gains import pace_of

CHANGE = Variant(switches=("torch.workers=2",))
RECIPE = Recipe("one", "torch", "image", "a/b", "c.py", changes={"num_workers=2": CHANGE})


def rounds(free: float, quiet: float = 100, change: float = 100) -> list[dict[str, float]]:
    return [{"now": 100, "free": free, "quiet": quiet, "num_workers=2": change}] * 3


def test_nothing_gains_so_the_step_is_the_limit() -> None:
    measured = truth(rounds(free=103, quiet=101))
    assert expected(RECIPE, measured) == ("step.bound", "step.host")
    assert not input_helps(measured)


def test_a_ready_batch_gains_most() -> None:
    measured = truth(rounds(free=200, quiet=120))
    assert expected(RECIPE, measured) == ("input.serial",)
    assert measured["lost_to_input"] == pytest.approx(0.5)


def test_leaving_out_the_evaluation_gains_most() -> None:
    assert expected(RECIPE, truth(rounds(free=110, quiet=150))) == ("pause.periodic",)


def test_rounds_that_disagree_make_both_right() -> None:
    measured = truth([{"now": 100, "free": 101}, {"now": 100, "free": 109}])
    assert set(expected(RECIPE, measured)) == {"step.bound", "step.host", "input.serial"}


def test_an_answer_is_compared_with_the_truth() -> None:
    measured = truth(rounds(free=103, change=80))
    advice = {"knob": "num_workers", "value": "2", "predicted_speedup": 1.2, "interval": [1.1, 1.3]}
    said = {"verdict": "input.serial", "recommendations": [advice], "lost_to_input": 0.2}
    found = score(RECIPE, measured, said | {"speedup_if_input_free": 1.25})
    assert not found["right"] and found["told"]
    assert found["loses"] == ["2"] and found["inside"] == [False]
    assert found["lost"] == pytest.approx(0.17, abs=0.01)


def test_a_rate_without_pauses_is_that_of_the_whole_window() -> None:
    pace = pace_of([i * 0.1 for i in range(11)])
    assert pace.rate(pace.long_s) == pytest.approx(10)
    assert not pace.pauses(pace.long_s)


def test_a_rate_with_pauses_is_that_of_whole_epochs() -> None:
    times, now = [0.0], 0.0
    for i in range(1, 48):  # a pause of 1 s after every ten steps; the window cuts the last epoch
        now += 0.1 + (1.0 if i % 10 == 0 else 0.0)
        times.append(now)
    pace = pace_of(times)
    assert pace.rate(pace.long_s) == pytest.approx(5.0)
    assert len(pace.pauses(pace.long_s)) == 4


def test_a_value_in_words_is_the_variant_of_its_first_word() -> None:
    measured = truth([{"now": 100, "free": 100, "every=10x": 115}])
    advice = {"knob": "every", "value": "10x the steps", "interval": [1.1, 1.2]}
    found = score(RECIPE, measured, {"recommendations": [advice]})
    assert found["inside"] == [True] and found["loses"] == []
