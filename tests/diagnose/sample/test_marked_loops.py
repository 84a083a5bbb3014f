"""Loops of a script that record their iterations, where Python reports no lines."""

from __future__ import annotations

import ast
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from fastfeed.diagnose.hooks.device_clock import (
    ArrayReadiness,
    BegunFetch,
    DeviceClock,
    ReadinessEntry,
)
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.sample.turns import add_turns
from fastfeed.steps.timeline import Timeline
from fastfeed.steps.watch import watch

SCRIPT = b"""# coding: latin-1
from __future__ import annotations
done: list[unknown] = []

for epoch in range(2):
    for x in data:
        y = (x,
             1)
        train_step(y)
    n = 0
    while n < 5:
        n += 1
"""


class StillClock(DeviceClock):
    """The clock of a device that is always idle."""

    now = 0.0

    def begin(self) -> BegunFetch:
        return BegunFetch(ArrayReadiness(list), ReadinessEntry([], None), self.now)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[HookLog]:
    """The log of a diagnosis that runs."""
    found = HookLog(Timeline())
    monkeypatch.setattr(watch, "log", found)
    return found


def run(step: Any) -> None:
    """Run the script."""
    names = {"data": range(3), "train_step": step}
    tree = ast.parse(SCRIPT, "train.py")
    add_turns(tree, "train.py")
    exec(compile(tree, "train.py", "exec", dont_inherit=True), names)


def test_iterations_of_loops_with_a_step_are_recorded(log: HookLog) -> None:
    run(lambda y: None)
    turns = log.beats_of(threading.get_ident()).turns
    assert {at: len(times) for at, times in turns.items()} == {
        ("train.py", 5): 2,
        ("train.py", 6): 6,
    }
    times = turns["train.py", 6]
    assert sorted(times) == list(times)


def test_what_a_loop_iterates_over_is_timed_by_the_device(log: HookLog) -> None:
    """Not what comes behind the last batch of an epoch, and no loop that counts."""
    log.device_clock = StillClock(log.failed)
    run(lambda y: None)
    gaps = log.beats_of(threading.get_ident()).gaps
    assert {at: len(found) for at, found in gaps.items()} == {("train.py", 6): 6}


def test_an_iterator_that_raised_is_no_fetch_of_the_next_loop(log: HookLog) -> None:
    log.device_clock = clock = StillClock(log.failed)
    with pytest.raises(ZeroDivisionError):
        run(lambda y: 1 / 0)
    clock.now = 2.0
    run(lambda y: None)
    gaps = log.beats_of(threading.get_ident()).gaps["train.py", 6]
    assert [gap.begin_s for gap in gaps] == [0.0, *[2.0] * 6]


def test_nothing_waits_for_the_device_in_another_thread(log: HookLog) -> None:
    log.device_clock = StillClock(log.failed)
    thread = threading.Thread(target=run, args=[lambda y: None])
    thread.start()
    thread.join()
    assert thread.ident is not None
    beats = log.beats_of(thread.ident)
    assert beats.turns and not beats.gaps


def test_nothing_is_recorded_when_the_diagnosis_is_over(log: HookLog) -> None:
    log.stop()
    run(lambda y: None)
    assert not log.beats_of(threading.get_ident()).turns


def test_lines_keep_their_numbers() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run(lambda y: 1 / 0)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [one.lineno for one in frames if one.filename == "train.py"] == [9]
