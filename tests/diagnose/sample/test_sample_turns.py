"""Iterations of a loop, as the interpreter reports them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.diagnose.sample import iterations as turns
from fastfeed.probes.interpreter import CAN_TRACE_LINES
from fastfeed.steps.timeline import Loop, Step
from tests.diagnose.turning import stop_at, train, turns_of

traces = pytest.mark.skipif(not CAN_TRACE_LINES, reason="sys.monitoring came with Python 3.12")


@traces
def test_each_turn_is_a_step() -> None:
    found, loop, timeline = turns_of(train, {2: 1.0})
    found.start()
    assert train(100) == train(100)
    found.stop()
    # The last request, which ends the loop, counts as one.
    assert len(loop.steps) == 2 * 101
    assert all(a.end_s <= b.begin_s for a, b in zip(loop.steps, loop.steps[1:], strict=False))
    assert all(0 < step.wait_s <= step.end_s - step.begin_s for step in loop.steps)
    assert [mark.kind for mark in timeline.marks] == ["epoch"], "the second pass"


@traces
def test_it_begins_and_ends_amidst_a_loop() -> None:
    found, loop, _ = turns_of(stop_at)
    found.start()
    stop_at(lambda: found, 100, 20)
    assert 18 <= len(loop.steps) <= 21


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0.0, 9.0)), max_size=40))
def test_steps_tile_the_loop_and_wait_in_the_lines_of_the_input(
    lines: list[tuple[int, float]],
) -> None:
    """Lines come in any order; 0 is the end of the function, 1 the head, and 2 is input."""
    found, loop, timeline = turns_of(train)
    head = found._lines.numbers.start
    found._lines = found._lines._replace(input_shares={head + 1: 1.0})
    now, begun, waited, before = 0.0, None, 0.0, 0
    expected, epochs = [], 0
    for line, lasted in lines:
        if begun is not None and before == 2:
            waited += lasted
        now += lasted
        if begun is not None and line in (0, 1):
            expected.append((begun, now, waited))
        epochs += line == 1 and begun is None and bool(expected)
        begun = now if line == 1 else None if line == 0 else begun
        waited = waited if line > 1 else 0.0
        found.begin_line(head + line - 1 if line else 0, now)
        before = line
    assert [step[:2] for step in loop.steps] == [one[:2] for one in expected]
    assert [step.wait_s for step in loop.steps] == pytest.approx([one[2] for one in expected])
    assert len(timeline.marks) == epochs


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


@pytest.mark.parametrize("by_head", [True, False])
def test_the_device_times_the_head_of_a_loop(by_head: bool) -> None:
    """From the head to the next line, if the head makes the input."""
    found, loop, _ = turns_of(train)
    head = found._lines.numbers.start
    found._lines = found._lines._replace(input_shares={head: 1.0}, by_head=by_head)
    ended: list[tuple[float, float]] = []

    class Device:
        def begin(self) -> SimpleNamespace:
            return SimpleNamespace(asked_s=now + 0.5)  # it has waited for what was computed

        def end(self, begun: SimpleNamespace, *, loop: Loop, begin_s: float) -> None:
            ended.append((begun.asked_s, now))

    found._device = Device()
    for now, line in enumerate([head, head + 1, head + 2, head, 0, head + 2]):
        found.begin_line(line, float(now))
    assert ended == [(0.5, 1)] * by_head
    assert [step.begin_s for step in loop.steps] == ([0.5, 3.5] if by_head else [0, 3])
