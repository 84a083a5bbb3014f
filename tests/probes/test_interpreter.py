"""Tracing of the lines of a loop."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from fastfeed.probes import interpreter as eyes
from tests.diagnose.turning import train, turns_of

pytestmark = pytest.mark.skipif(
    not eyes.CAN_TRACE_LINES, reason="sys.monitoring came with Python 3.12"
)


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


def test_of_a_loop_in_the_loop_nothing_more_is_told() -> None:
    told: list[int] = []

    def nested(count: int) -> None:
        for number in range(count):  # the loop
            for _ in range(1000):
                number += 1

    found, loop, _ = turns_of(nested)
    seen = found.begin_line
    found._tracer._seen = lambda line, now: (told.append(line), seen(line, now))[1]
    found.start()
    nested(20)
    found.stop()
    assert len(loop.steps) == 21
    assert len(told) < 20 * 10 + 2 * eyes.MAX_LINE_REPEATS + 50
