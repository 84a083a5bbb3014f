"""Steps behind an experiment that live on its backlog count for nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.diagnose.evidence import FULL, PYTHON
from fastfeed.diagnose.judge.backlog import backlog_steps
from fastfeed.steps.timeline import Mark, Step
from tests.diagnose.evidences import SLEEP, judged, loop_of, producers, trainer


def burst(waits_ms: list[float], *, free: int, took_s: float = 1.0) -> tuple[list[Step], Mark]:
    """Thirty steps that wait for 30 ms, an experiment, its free steps, and those behind it."""
    before = loop_of([30.0] * 30, free=free).steps
    at = before[30].begin_s
    late = [
        step._replace(begin_s=step.begin_s + took_s, end_s=step.end_s + took_s)
        for step in before[30:]
    ]
    then = late[-1].end_s
    behind = [
        step._replace(begin_s=step.begin_s + then, end_s=step.end_s + then)
        for step in loop_of(waits_ms).steps
    ]
    return [*before[:30], *late, *behind], Mark("experiment", at, at + took_s)


@pytest.mark.parametrize("backlog", [0, 1, 16])
def test_what_the_producers_made_meanwhile_is_no_speed_of_theirs(backlog: int) -> None:
    steps, mark = burst([0.01] * backlog + [30.0] * 30, free=8)
    loop = loop_of([1.0])
    loop.steps[:] = steps
    found = judged(loop, trainer(), *producers(1, {SLEEP: 1.0}), marks=[mark]).figures
    assert found is not None
    assert found.starvation == pytest.approx(30 / 40, abs=1e-3)
    assert found.steps_per_second == pytest.approx(25, rel=1e-3)
    assert backlog_steps(steps, [mark]) == set(range(38, 38 + backlog))


def test_a_wait_at_every_fourth_step_is_the_usual_way() -> None:
    steps, mark = burst([0.0, 0.0, 0.0, 120.0] * 20, free=8)
    assert len(backlog_steps(steps, [mark])) <= 3


@pytest.mark.parametrize(
    ("behind_ms", "rate"),
    [([5.0] * 300, 25.0), ([28.0] * 300, None), ([30.0] * 150 + [5.0] * 150, None)],
    ids=["at once and for good", "hardly", "later"],
)
def test_where_an_experiment_changed_the_pace_only_what_was_before_it_is_the_scripts(
    behind_ms: list[float], rate: float | None
) -> None:
    """The memory of several batches at once is memory that malloc keeps."""
    steps, mark = burst(behind_ms, free=8)
    loop = loop_of([1.0])
    loop.steps[:] = steps
    found = judged(loop, trainer(), *producers(1, {SLEEP: 1.0}), marks=[mark]).figures
    assert found is not None
    assert (found.steps <= 31) == (rate is not None)
    if rate is not None:
        assert found.steps_per_second == pytest.approx(rate, rel=0.02)
        assert found.starvation == pytest.approx(0.75, abs=0.01)


def test_where_few_steps_wait_nobody_can_tell() -> None:
    """Every epoch of thirty steps begins with a wait."""
    epoch = [300.0, *[0.0] * 29]
    first, then = loop_of(epoch * 3).steps, loop_of(([0.0] * 30 + epoch) * 3).steps
    start, end = first[-1].end_s, first[-1].end_s + 0.3
    behind = [step._replace(begin_s=step.begin_s + end, end_s=step.end_s + end) for step in then]
    assert not backlog_steps([*first, *behind], [Mark("experiment", start, end)])


STEPS = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.booleans()), max_size=40)


@given(STEPS, st.lists(st.tuples(st.floats(0, 50), st.floats(0, 3)), max_size=4))
def test_only_steps_behind_an_experiment_are_left_out(
    given_steps: list[tuple[float, float, bool]], spans: list[tuple[float, float]]
) -> None:
    steps, now = [], 0.0
    for wait, step, free in given_steps:
        steps.append(Step(now, now + wait + step, wait, free))
        now = steps[-1].end_s
    marks = [Mark("experiment", start, start + length) for start, length in spans]
    first = min((mark.end_s for mark in marks), default=float("inf"))
    assert all(not steps[i].free and steps[i].begin_s >= first for i in backlog_steps(steps, marks))


@pytest.mark.parametrize(("wait_ms", "step_s"), [(40.0, 0.010), (0.02, 0.014)])
def test_free_steps_beside_a_producer_that_goes_on_for_a_while(
    wait_ms: float, step_s: float
) -> None:
    """The quickest of them had the lock for themselves; where no step waits, it is the loop itself
    that holds it."""
    loop = loop_of([wait_ms] * 60, 14.0)
    at = loop.steps[-1].end_s
    for took_s in (0.014, 0.010, 0.014) * 4:
        loop.steps.append(Step(at, at + took_s, 0.0, free=True))
        at += took_s
    python = producers(1, {PYTHON: 0.9, FULL: 0.1})
    found = judged(loop, trainer({PYTHON: 1.0}), *python, gil_late_s=5e-3)
    assert found.ceiling is not None
    assert found.ceiling.step_s == pytest.approx(step_s, rel=0.01)
