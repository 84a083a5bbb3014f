"""Iterations of a loop, as the interpreter reports them."""

from __future__ import annotations

import pytest

from fastfeed.diagnose.sample import iterations as turns
from fastfeed.steps.timeline import OBSERVING, Mark, Step
from tests.diagnose.turning import settled, stop_at, train, turns_of

pytestmark = pytest.mark.usefixtures("untraced")


def test_each_turn_is_a_step() -> None:
    found, loop, timeline = turns_of(train, {2: 1.0})
    found.start()
    assert train(100) == train(100)
    found.stop()
    settled(found)
    # The last request, which ends the loop, counts as one.
    assert len(loop.steps) == 2 * 101
    assert all(a.end_s <= b.begin_s for a, b in zip(loop.steps, loop.steps[1:], strict=False))
    assert all(0 < step.wait_s <= step.end_s - step.begin_s for step in loop.steps)
    assert [mark.kind for mark in timeline.marks if mark.kind != OBSERVING] == ["epoch"], (
        "the second pass"
    )


def test_lines_that_wait_for_nothing() -> None:
    found, loop, _ = turns_of(train, {4: 0.0})
    found.start()
    train(10)
    found.stop()
    settled(found)
    assert {step.wait_s for step in loop.steps} == {0.0}


def test_it_begins_and_ends_amidst_a_loop() -> None:
    found, loop, _ = turns_of(stop_at)
    found.start()
    stop_at(lambda: found, 100, 20)
    settled(found)
    assert 18 <= len(loop.steps) <= 21


def test_what_looking_takes_is_no_part_of_a_turn() -> None:
    """Half of a line that takes twice as long while it is traced, and the cost of the interpreter's
    calls."""
    found, loop, timeline = turns_of(train, {2: 1.0}, {2: 2.0})
    head = found._lines.numbers.start
    for line, now, cost_s in (
        (head, 0.0, 0.0),
        (head + 1, 4.0, 0.0),
        (head, 10.0, 1.0),
        (0, 10.0, 1.0),
    ):
        found._tracer.cost_s = cost_s
        found.begin_line(line, now)
    assert loop.steps[0] == Step(0.0, 10.0, 2.0)
    assert timeline.marks == [Mark(OBSERVING, 7.0, 10.0)]


def test_a_loop_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another loop is searched then; slow iterations get three times as long as they take."""
    now = [100.0]
    monkeypatch.setattr(turns, "perf_counter", lambda: now[0])
    found, loop, _ = turns_of(train)
    found._started_s = 100.0
    now[0] = 104.0
    assert found.is_running(5.0), "its first turn may be slow"
    loop.steps.append(Step(100.0, 104.0, 0.0))
    now[0] = 115.0
    assert found.is_running(5.0)
    now[0] = 117.0
    assert not found.is_running(5.0)
    assert found.tracks_same_loop(turns_of(train)[0])
    assert not found.tracks_same_loop(turns_of(stop_at)[0])
