"""Steps whose batches were taken ahead: nothing that the loop sees is another than without."""

from __future__ import annotations

import itertools
import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.diagnose.hooks import experiments as module
from fastfeed.diagnose.hooks.copies import NotCopyable, addresses, copied, nbytes_of
from fastfeed.diagnose.hooks.experiments import (
    GUARD_STEPS,
    MAX_BATCHES,
    Experiments,
    RecordedInput,
    randomness,
)
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.steps.recorder import NEVER, BatchSource, StepRecorder
from fastfeed.steps.timeline import Step, Timeline
from fastfeed.steps.watch import WatchedIterator
from tests.diagnose.hooked import Clock

IDLE = BatchSource(idle=lambda: True)


class Bursts(HookLog):
    """Makes an experiment at every ask whose number is in `bursts`."""

    def __init__(self, bursts: set[int]) -> None:
        super().__init__(Timeline())
        self.experiments = Experiments(self)
        self.experiments.plan(0.0, 600.0)
        self.bursts, self.asks, self.due_s = bursts, 0, 0.0

    def experiment(self, steps: StepRecorder, take: Callable[[], Any]) -> None:
        self.asks += 1
        if self.asks in self.bursts:
            self.experiments.burst(RecordedInput(self.experiments, steps, get=take))
            self.due_s = 0.0


def watched(source: Iterator[Any], log: HookLog, *, buffer: int | None = 4) -> WatchedIterator:
    steps = StepRecorder(log, "watch", name="source", buffer=buffer, source=IDLE)
    return WatchedIterator(source, steps)


def source(length: int, fails: int | None, kind: str) -> Iterator[Any]:
    """Batches by number: new ones, one array that is filled again, or two in turn."""
    held = [np.zeros(3), np.zeros(3)]
    for i in range(length):
        if i == fails:
            raise ValueError(f"at {i}")
        array = np.zeros(3) if kind == "new" else held[i % (1 if kind == "one" else 2)]
        array[:] = i
        yield (array, {"n": i})


def seen(iterator: Iterator[Any]) -> list[Any]:
    """All that a loop sees, also behind the end."""
    found: list[Any] = []
    while len(found) < 60:
        try:
            array, rest = next(iterator)
            found.append((array.tolist(), rest))
        except (StopIteration, ValueError) as error:
            found.append((type(error), str(error)))
            if found[-2:-1] and found[-2][0] is StopIteration:
                return found
    return found


@given(
    st.integers(0, 30),
    st.none() | st.integers(0, 30),
    st.sampled_from(("new", "one", "two")),
    st.sets(st.integers(1, 30)),
    st.sampled_from((None, 2, 16)),
)
def test_the_sequence_is_the_same(
    length: int, fails: int | None, kind: str, bursts: set[int], buffer: int | None
) -> None:
    log = Bursts(bursts)
    assert seen(watched(source(length, fails, kind), log, buffer=buffer)) == seen(
        source(length, fails, kind)
    )
    loop = log.timeline.main()
    assert loop is None or all(
        a.end_s <= b.begin_s for a, b in zip(loop.steps, loop.steps[1:], strict=False)
    )


def test_free_steps_are_marked() -> None:
    log = Bursts({3})
    assert len(seen(watched(source(20, None, "new"), log, buffer=None))) == 22
    (loop,) = log.timeline.loops.values()
    assert [i for i, step in enumerate(loop.steps) if step.free] == list(range(2, 10))
    assert all(step.wait_s == 0 for step in loop.steps if step.free)
    (mark,) = log.timeline.marks
    assert mark.kind == "experiment"
    assert loop.steps[1].end_s <= mark.start_s <= mark.end_s <= loop.steps[2].begin_s


def test_an_interrupt_amid_loses_nothing() -> None:
    log, numbers = Bursts({1}), iter(range(20))

    def interrupted() -> int:
        number = next(numbers)
        if number == 2 and not log.waiting.get(-1):
            log.waiting[-1] = 1.0
            raise KeyboardInterrupt
        return number

    steps = StepRecorder(log, "watch", name="x", buffer=4, source=IDLE)
    with pytest.raises(KeyboardInterrupt):
        steps.take(interrupted)
    assert [steps.take(interrupted) for _ in range(4)] == [0, 1, 3, 4], (
        "2 was lost by the source itself"
    )


def due(
    buffer: int | None, *, kind: str = "watch", wait_s: float = 0.5
) -> tuple[HookLog, StepRecorder]:
    """A loop that starves, and whose experiments are due."""
    log = HookLog(Timeline())
    log.experiments = Experiments(log)
    steps = StepRecorder(log, kind, name="x", buffer=buffer, source=IDLE)
    begin_s = perf_counter() - 60.0
    steps.take(lambda: -1)
    steps.loop.steps[:] = [Step(begin_s + i, begin_s + i + 1.0, wait_s) for i in range(60)]
    steps.loop.steps.append(steps.loop.steps[-1])
    log.experiments.plan(begin_s, begin_s + 60.0)
    log.due_s = 0.0
    return log, steps


@pytest.mark.parametrize(
    ("buffer", "kind", "elsewhere", "free"),
    [
        (4, "torch", False, MAX_BATCHES),
        (0, "torch", False, 0),
        (None, "watch", False, 0),
        (None, "watch", True, MAX_BATCHES),
    ],
)
def test_only_where_others_make_the_batches(
    buffer: int | None, kind: str, elsewhere: bool, free: int
) -> None:
    log, steps = due(buffer, kind=kind)
    assert log.experiments is not None
    log.experiments._due.clear()  # this one burst
    if elsewhere:
        log.elsewhere.add(threading.get_ident())
    numbers = itertools.count()
    assert [steps.take(numbers.__next__) for _ in range(GUARD_STEPS + 10)] == list(
        range(GUARD_STEPS + 10)
    )
    steps.end(perf_counter())
    assert sum(step.free for step in steps.loop.steps) == free
    assert (free > 0) == any(mark.kind == "experiment" for mark in log.timeline.marks)


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (lambda: random.random(), "random numbers"),
        (lambda: np.random.rand(), "random numbers"),
        (object, "object"),
    ],
)
def test_refused(item: Callable[[], Any], why: str) -> None:
    log, steps = due(4)
    for _ in range(30):
        steps.take(item)
        log.due_s = 0.0
    steps.end(perf_counter())
    assert not any(step.free for step in steps.loop.steps)
    assert why in log.missing[0]


def test_a_loop_that_does_not_starve_is_left_alone() -> None:
    log, steps = due(4, wait_s=0.01)
    steps.take(lambda: 1)
    assert not steps.ahead
    assert log.due_s > 0.0, "the next one"


def test_one_experiment_where_producers_take_the_cores() -> None:
    log, steps = due(4, wait_s=0.01)
    log.contended = lambda: 1
    for _ in range(60):
        steps.take(lambda: 1)
        if not any(step.free for step in steps.loop.steps):
            log.due_s = 0.0
    steps.end(perf_counter())
    assert sum(step.free for step in steps.loop.steps) == MAX_BATCHES
    assert log.experiments is not None
    log.due_s = 0.0
    assert not log.experiments.is_due(steps.loop), "one is enough"


class Shelf:
    """The input of a hook that takes batches ahead itself; `taking` is called for each."""

    def __init__(self, taking: Callable[[], None] = lambda: None) -> None:
        self.taken, self._taking = 0, taking

    def take(self) -> bool:
        self._taking()
        self.taken += 1
        return True

    def is_full(self) -> bool:
        return True


def test_bursts_of_hooks_that_take_ahead_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes too long is the last."""
    log, steps = due(4)
    clock = Clock()
    monkeypatch.setattr(module, "perf_counter", clock)
    assert log.experiments is not None
    assert log.experiments.is_due(steps.loop)
    quick, slow = Shelf(), Shelf(lambda: clock.advance(100.0))
    log.experiments.burst(quick)
    assert (quick.taken, 0.0 < log.due_s < NEVER) == (MAX_BATCHES, True)
    log.experiments.burst(slow)
    assert (slow.taken, log.due_s) == (1, NEVER)
    assert [mark.end_s - mark.start_s for mark in log.timeline.marks] == [0.0, 100.0]


class Pair(NamedTuple):
    a: Any
    b: Any


def test_copies() -> None:
    array = np.arange(4.0)
    batch = Pair([array, (1, "a")], OrderedDict(x=array[1:], y=None))
    copy = copied(batch)
    assert type(copy) is Pair and type(copy.b) is OrderedDict
    assert addresses(batch) and not addresses(copy) & addresses(batch)
    array[:] = 0
    assert copy.a[0].tolist() == [0, 1, 2, 3] and copy.b["x"].tolist() == [1, 2, 3]
    assert nbytes_of(copy) == 56
    for unknown in (object(), np.array([{}]), {1, 2}, bytearray(2)):
        with pytest.raises(NotCopyable):
            copied([unknown])


def test_randomness_sees_every_global_generator() -> None:
    for draw in (random.random, np.random.rand):
        before = randomness()
        assert randomness() == before
        draw()
        assert randomness() != before
