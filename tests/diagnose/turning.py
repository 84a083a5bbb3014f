"""Loops whose iterations the interpreter reports."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from fastfeed.diagnose.hooks.device_clock import DeviceClock
from fastfeed.diagnose.sample.iterations import IterationTracker
from fastfeed.diagnose.sample.loop_parts import LoopLines
from fastfeed.steps.timeline import Loop, Timeline


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


def stop_at(turning: Callable[[], IterationTracker], count: int, at: int) -> None:
    for number in batches(count):  # the loop
        if number == at:
            turning().stop()


def turns_of(
    function: Any, waits: dict[int, float] | None = None
) -> tuple[IterationTracker, Loop, Timeline]:
    """Return a tracker of a function's loop; `waits`: by offset of a line, its share of input."""
    lines, first = inspect.getsourcelines(function)
    head = next(i for i, line in enumerate(lines) if "# the loop" in line)
    last = max(i for i, line in enumerate(lines) if line.startswith("        "))
    timeline, loop = Timeline(), Loop("loop", "sampled", 0)
    code: CodeType = function.__code__
    shares = {first + offset: share for offset, share in (waits or {}).items()}
    numbers = range(first + head, first + last + 1)
    lines_of, device = LoopLines(code, numbers, shares), DeviceClock(lambda what, error: None)
    return IterationTracker(timeline, loop, lines=lines_of, device=device), loop, timeline
