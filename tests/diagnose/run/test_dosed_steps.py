"""Steps that interventions made slower: they are in no figure of the report."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.diagnose.judge.entries import ledger_of
from fastfeed.diagnose.run.collector import aligned, without_dosed
from fastfeed.diagnose.run.lifecycle import WatchPlan
from fastfeed.steps.timeline import DOSED, Mark, Step
from tests.diagnose.evidences import evidence, loop_of
from tests.diagnose.observing import observed

LOOP = """
import time, fastfeed
for _ in fastfeed.watch(range(3000)): time.sleep(0.002)
"""


@given(
    st.lists(st.tuples(st.floats(0, 4), st.floats(0, 0.5)), max_size=6),
    st.lists(st.floats(0.001, 0.05), min_size=1, max_size=80),
)
def test_a_dosed_step_is_left_out_as_a_whole(
    spans: list[tuple[float, float]], steps_s: list[float]
) -> None:
    steps, now_s = [], 0.0
    for step_s in steps_s:
        steps.append(Step(now_s, now_s + step_s, 0.0))
        now_s += step_s
    marks = [Mark("experiment", start_s, start_s + s, DOSED) for start_s, s in spans]
    other = Mark("evaluation", 0.0, 1.0)
    found = aligned([*marks, other], steps)
    assert found[-1] == other
    kept = without_dosed(steps, found)
    for before, mark in zip(marks, found, strict=False):
        assert mark.start_s <= before.start_s and mark.end_s >= before.end_s
        assert not any(s.end_s > mark.start_s and s.begin_s < mark.end_s for s in kept)
    touched = {step for step in steps for m in found[:-1] if m.start_s <= step.begin_s < m.end_s}
    assert set(kept) == set(steps) - touched


@pytest.mark.parametrize("slower", [1.0, 3.0, 40.0])
def test_the_ledger_is_that_of_the_other_steps(slower: float) -> None:
    """A loop of 400 steps of 10 ms with gaps of 2 ms, of which 20 were slower, in two blocks."""
    plain = loop_of([1.0] * 400, 9.0, gap_ms=2.0)
    bodies = [9.0 * slower if i % 200 in range(100, 110) else 9.0 for i in range(400)]
    dosed = loop_of([1.0] * 400, bodies, gap_ms=2.0)
    marks = [
        Mark("experiment", dosed.steps[i].begin_s + 0.001, dosed.steps[i + 9].end_s, DOSED)
        for i in (100, 300)
    ]
    marks = aligned(marks, dosed.steps)
    left = replace(dosed, steps=without_dosed(dosed.steps, marks))
    assert len(left.steps) == 380
    seen, truth = ledger_of(evidence(left, marks=marks)), ledger_of(evidence(plain))
    assert seen.seconds / len(seen) == pytest.approx(truth.seconds / len(truth))
    assert seen.period == pytest.approx(0.012)
    assert seen.starvation == pytest.approx(truth.starvation)


@pytest.mark.parametrize("experiments", [True, False])
def test_only_with_experiments(experiments: bool) -> None:
    plan = WatchPlan(5.0, 0.2, experiments=experiments)
    *_, said = observed("-c", LOOP, plan=plan)
    assert ("experiment" in said[-1]["marks"]) == experiments
    assert said[-1]["missing"] == []
