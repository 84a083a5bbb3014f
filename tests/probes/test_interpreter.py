"""Tracing of loop lines: the code that is traced, and the code that is not."""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from fastfeed.probes import interpreter as eyes
from fastfeed.steps.timeline import UNOBSERVED
from tests.diagnose.turning import settled, train, turns_of, work

traces = pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="sys.monitoring tells of lines since Python 3.12"
)
pytestmark = pytest.mark.usefixtures("untraced")


@traces
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


@traces
def test_a_thread_that_executes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits in one call since before the start: the end does not wait for it."""
    monkeypatch.setattr(eyes, "TRACER_STOP_S", threading.TIMEOUT_MAX)
    found, loop, _ = turns_of(train)
    lock = _thread.allocate_lock()
    lock.acquire()

    def watch() -> None:
        found.start()
        found.stop()
        lock.release()

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(60.0)  # the thread runs once this one waits
    try:
        _thread.start_new_thread(watch, ())
        lock.acquire()
    finally:
        sys.setswitchinterval(interval_s)
    train(50)
    assert not loop.steps and sys.gettrace() is None


def slow(number: int) -> bool:
    """Return True if the interpreter traces this code."""
    return sys.gettrace() is not None


def spares(count: int, found: list[bool]) -> None:
    for number in range(count):  # the loop
        found.append(slow(number))


def through(count: int) -> Iterator[bool]:
    for number in range(count):
        yield slow(number)


def goes_over(batches: Iterator[bool], found: list[bool]) -> None:
    for batch in batches:  # the loop
        found.append(batch)


@traces
@pytest.mark.parametrize("generates", [False, True])
def test_what_a_loop_calls_is_as_quick_as_ever(
    generates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what the generator calls that it goes over."""
    monkeypatch.setattr(eyes, "MAX_COST", float("inf"))
    traced: list[bool] = []
    turning, loop, _ = turns_of(goes_over if generates else spares)
    turning.start()
    goes_over(through(100), traced) if generates else spares(100, traced)
    turning.stop()
    settled(turning)
    assert len(traced) == 100 and not any(traced)
    assert len(loop.steps) == 101, "and every turn is seen"


@traces
def test_a_frame_that_somebody_else_has_for_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[FrameType] = []

    def keeps(first: bool) -> None:
        if first:
            kept.append(sys._getframe())

    def calls(first: bool) -> None:
        for _ in range(5):  # the loop
            keeps(first)

    turning, loop, _ = turns_of(calls)
    turning.start()
    calls(True)
    assert not loop.steps, "nobody has told that the first call is over"
    # who goes on, as the sampler does
    thread = threading.Thread(target=lambda: (kept.clear(), work(3)))
    thread.start()
    thread.join()
    calls(False)
    turning.stop()
    settled(turning)
    assert len(loop.steps) >= 5


@traces
def test_where_looking_costs_much_turns_are_seen_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(eyes, "MAX_COST", 0.0)
    monkeypatch.setattr(eyes, "CALLS_PER_CHECK", 30)
    monkeypatch.setattr(eyes, "TRACE_WINDOW_S", 0.0)
    found, loop, timeline = turns_of(train)
    found.start()
    train(500)
    seen = len(loop.steps)
    assert eyes.TRACED_ITERATIONS <= seen < 100
    assert sys.gettrace() is None and not found.given_up
    found.wake()
    train(500)
    assert seen + eyes.TRACED_ITERATIONS - 1 <= len(loop.steps) < 2 * 100
    (rest,) = [mark for mark in timeline.marks if mark.kind == UNOBSERVED]
    assert (rest.start_s, rest.end_s) == (loop.steps[seen - 1].end_s, loop.steps[seen].begin_s)
    assert not [mark for mark in timeline.marks if mark.kind == "epoch"]
    found.stop()
    settled(found)


@traces
def test_a_turn_that_nobody_can_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eyes, "CALLS_PER_CHECK", 30)
    monkeypatch.setattr(eyes, "MAX_ITERATION_EVENTS", 100)

    def many(count: int) -> None:
        for number in range(count):  # the loop
            for _ in range(1000):
                number += 1

    found, loop, _ = turns_of(many)
    found.start()
    many(3)
    assert "too many" in found.given_up
    assert not loop.steps and sys.gettrace() is None
    found.stop()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring came with Python 3.12")
def test_tools_that_others_have_are_left_to_them() -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
    for tool in eyes.TOOLS:
        monitoring.use_tool_id(tool, "another")
    try:
        found, loop, _ = turns_of(train)
        found.start()
        train(50)
        found.stop()
    finally:
        for tool in eyes.TOOLS:
            monitoring.free_tool_id(tool)
    assert not loop.steps
    assert "debugger" in found.given_up


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring came with Python 3.12")
def test_of_a_loop_in_the_loop_nothing_more_is_told() -> None:
    told: list[int] = []

    def nested(count: int) -> None:
        for number in range(count):  # the loop
            for _ in range(1000):
                number += 1

    found, loop, _ = turns_of(nested)
    seen = found.begin_line
    found._tracer._seen = lambda line, now: (told.append(line), seen(line, now))  # type: ignore[union-attr]
    found.start()
    nested(20)
    found.stop()
    assert len(loop.steps) == 21
    assert len(told) < 20 * 10 + 2 * eyes.MAX_LINE_REPEATS + 50
