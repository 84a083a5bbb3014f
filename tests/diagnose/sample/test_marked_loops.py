"""Loops of a script that record their iterations, where Python reports no lines."""

from __future__ import annotations

import ast
import contextlib
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
from fastfeed.steps.timeline import Step, Timeline
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


@pytest.mark.parametrize(
    "body",
    [
        "train_step(x); continue",
        "if x == 1: train_step(x); continue\n    train_step(x)",
        "with still: train_step(x)",
        "for _ in range(2):\n        train_step(x)\n        if x: continue",
    ],
)
def test_each_fetch_of_a_loop_is_timed(body: str, log: HookLog) -> None:
    log.device_clock = StillClock(log.failed)
    done: list[int] = []
    names = {"data": range(3), "train_step": done.append, "still": contextlib.nullcontext()}
    tree = ast.parse(f"for x in data:\n    {body}\nelse:\n    train_step(9)")
    add_turns(tree, "train.py")
    exec(compile(tree, "train.py", "exec", dont_inherit=True), names)
    assert done[-1] == 9 and sorted({*done[:-1]}) == [0, 1, 2]
    assert len(log.beats_of(threading.get_ident()).gaps["train.py", 1]) == 3


def test_what_hooks_time_is_not_timed_twice(log: HookLog) -> None:
    log.device_clock = StillClock(log.failed)
    loop = log.timeline.loop("loader", name="loader", kind="torch", thread=1)
    loop.steps += [Step(0.0, 1.0, 0.5), Step(1.0, 2.0, 0.5)]
    run(lambda y: None)
    beats = log.beats_of(threading.get_ident())
    assert beats.turns and not beats.gaps


def test_functions_that_are_compiled_stay_as_they_are(log: HookLog) -> None:
    text = "@{}\ndef main():\n    for x in data: train_step(x)"
    for decorator, marked in (("jit", False), ("tf.function()", False), ("click.command()", True)):
        tree = ast.parse(text.format(decorator))
        before = ast.dump(tree)
        add_turns(tree, "train.py")
        assert (ast.dump(tree) != before) == marked


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
