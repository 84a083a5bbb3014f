"""Turns of a loop, as the interpreter tells them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import pytest

from fastfeed.diagnose.measure import turns
from fastfeed.diagnose.measure.turns import Lines, Turns
from fastfeed.timeline import Loop, Step, Timeline


def batches(count: int) -> Iterator[int]:
    yield from range(count)


def work(number: int) -> int:
    return sum(range(number % 7))


def train(count: int) -> int:
    total = 0
    for number in batches(count):  # the loop
        total += work(number)
        if total < 0:
            break
    return total


def stop_at(turning: Callable[[], Turns], count: int, at: int) -> None:
    for number in batches(count):  # the loop
        if number == at:
            turning().stop()


def turns_of(function: Any, waits: dict[int, float] | None = None) -> tuple[Turns, Loop, Timeline]:
    lines, first = inspect.getsourcelines(function)
    head = next(i for i, line in enumerate(lines) if "# the loop" in line)
    last = max(i for i, line in enumerate(lines) if line.startswith("        "))
    timeline, loop = Timeline(), Loop("loop", "sampled", 0)
    code: CodeType = function.__code__
    shares = {first + offset: share for offset, share in (waits or {}).items()}
    found = Turns(timeline, loop, of=Lines(code, range(first + head, first + last + 1), shares))
    return found, loop, timeline


@pytest.fixture(autouse=True)
def untraced() -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(None)
    yield
    assert sys.gettrace() is None, "nothing is left of it"
    sys.settrace(before)


def settled(found: Turns) -> None:
    """Pending calls are made between instructions."""
    for _ in range(1000):
        work(3)
    assert not found.given_up


def test_each_turn_is_a_step() -> None:
    found, loop, timeline = turns_of(train, {2: 1.0})
    found.start()
    assert train(100) == train(100)
    found.stop()
    settled(found)
    # the last ask, which ends the loop, is one
    assert len(loop.steps) == 2 * 101
    assert all(a.end_s <= b.begin_s for a, b in zip(loop.steps, loop.steps[1:], strict=False))
    assert all(0 < step.wait_s <= step.end_s - step.begin_s for step in loop.steps)
    assert [mark.kind for mark in timeline.marks] == ["epoch"], "the second pass"


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


def test_a_debugger_is_left_alone() -> None:
    def debugger(frame: Any, event: str, arg: Any) -> None:
        return None

    found, loop, _ = turns_of(train)
    sys.settrace(debugger)
    try:
        found.start()
        train(50)
        assert sys.gettrace() is debugger
        found.stop()
        train(50)
        assert sys.gettrace() is debugger
    finally:
        sys.settrace(None)
    assert not loop.steps
    assert "debugger" in found.given_up


def test_a_loop_of_many_calls_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "COSTLY", 1)
    monkeypatch.setattr(turns, "LOOK", 30)
    found, loop, _ = turns_of(train)
    found.start()
    train(500)
    assert "too many functions" in found.given_up
    assert len(loop.steps) < 100
    assert sys.gettrace() is None
    found.stop()


def test_a_loop_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one is looked for then; slow turns are given three times as long as they take."""
    now = [100.0]
    monkeypatch.setattr(turns, "perf_counter", lambda: now[0])
    found, loop, _ = turns_of(train)
    found._started_s = 100.0
    now[0] = 104.0
    assert found.goes_on(5.0), "its first turn may be slow"
    loop.steps.append(Step(100.0, 104.0, 0.0))
    now[0] = 115.0
    assert found.goes_on(5.0)
    now[0] = 117.0
    assert not found.goes_on(5.0)
    assert found.same(turns_of(train)[0])
    assert not found.same(turns_of(stop_at)[0])
