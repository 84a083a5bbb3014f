"""The headline, and that its figures agree with each other and with those below it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.diagnose.diagnosis import CODES, Cause, Diagnosis
from fastfeed.diagnose.report.formats import factor, percent, rate
from fastfeed.diagnose.report.headline import headline_of
from fastfeed.diagnose.report.json import json_of
from fastfeed.diagnose.report.sections import sections_of
from tests.diagnose.diagnoses import CASES, diagnosis, figures
from tests.diagnose.evidences import cases, judged_case

LOST = re.compile(r"steps/s; ([\d.]+) % of the time is lost.* would be ([\d,.]+)x as fast, at most")


def facts_of(told: Diagnosis) -> dict[str, str]:
    return dict(fact for section in sections_of(json_of(told)) for fact in section.facts)


def check(told: Diagnosis) -> None:
    """Lost time and gain are one figure, the same as below."""
    headline, facts = headline_of(told), facts_of(told)
    assert told.figures is not None
    assert headline.startswith(f"{rate(told.figures.steps_per_second)} steps/s")
    assert facts["steps a second"].startswith(rate(told.figures.steps_per_second))
    found = LOST.search(headline)
    if found is None:
        assert str(told.verdict).startswith("step.")
        assert f"for {percent(told.figures.starvation)} of the time" in headline
        assert facts["starvation"].startswith(percent(told.figures.starvation))
        return
    low, high = (float(found[1]) / 100 + half for half in (-0.005001, 0.005001))
    gain = float(found[2].replace(",", ""))
    least, most = 1 / (1 - low), 1 / max(1e-9, 1 - high)
    assert least * 0.97 <= gain <= most * 1.03, headline
    if str(told.verdict).startswith("input."):
        assert facts["lost to input"] == f"{found[1]} %"
        assert facts["if input cost nothing"].startswith(f"{found[2]}x")


@given(
    code=st.sampled_from([code for code in CODES if code != "feed.dead"]),
    share=st.floats(0, 0.999),
    speedup=st.floats(1, 500),
    parts=st.lists(st.floats(0.01, 1), min_size=4, max_size=4),
)
def test_lost_time_and_gain_never_contradict(
    code: str, share: float, speedup: float, parts: list[float]
) -> None:
    one = diagnosis("input.serial")
    shown = figures([part / sum(parts) for part in parts], one.evidence)
    check(
        replace(
            one,
            verdict=code,
            causes=(Cause(code, share, ()),),
            figures=shown,
            speedup_if_input_free=speedup,
            speedup_range=(speedup * 0.9, speedup * 1.1),
        )
    )


@pytest.mark.parametrize("code", CASES)
def test_realistic_ones(code: str) -> None:
    if code != "feed.dead":
        check(diagnosis(code))


@pytest.mark.parametrize("name", cases())
def test_what_the_judge_says(name: str) -> None:
    check(judged_case(name))


def test_what_waits_do_not_explain_is_said() -> None:
    """Seen: 93 % lost and 14.4 times, beside a starvation of 65 %."""
    one = diagnosis("input.gil")
    assert one.figures is not None
    told = replace(
        one,
        speedup_if_input_free=14.4,
        speedup_range=(13.0, 15.0),
        figures=replace(one.figures, starvation=0.65),
    )
    text = " ".join(text for section in sections_of(json_of(told)) for text in section.texts)
    assert f"{percent(1 - 1 / 14.4)} of the time is lost to input" in headline_of(told)
    assert f"{factor(14.4)} as fast, at most" in headline_of(told)
    assert "Lost to input, 93 %: waits take 65 % of the time, and what slows the steps" in text
    assert "takes 28 %." in text


def test_without_figures() -> None:
    one = diagnosis("input.gil")
    assert headline_of(replace(one, figures=None)) == f"input.gil: {CODES['input.gil']}."
    why = "too few steps"
    assert headline_of(replace(one, abstained=why)) == f"No verdict: {why}."
    assert headline_of(replace(one, speedup_if_input_free=float("inf"))).endswith(
        "would be – as fast, at most."
    )
    dead = diagnosis("feed.dead")
    assert headline_of(dead) == f"The feed is dead: {dead.causes[0].evidence[0]}"
