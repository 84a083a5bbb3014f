"""A training loop's own thread: which lines are input, which the step, and how often it turns."""

from __future__ import annotations

import ast
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.sample import slices
from fastfeed.diagnose.sample.loops import find, parts_of
from fastfeed.diagnose.sample.repeats import (
    counted,
    counters_of,
    repeated_loop,
    turns,
)
from fastfeed.diagnose.sample.sampler import Sampler
from fastfeed.diagnose.sample.tasks import ENOUGH_LOOKS
from fastfeed.diagnose.sample.thread_log import Sample, counts_of, stack_of
from fastfeed.probes.procfs import RUNNING
from fastfeed.steps.timeline import Timeline
from tests.diagnose.looking import Recorder, cast


def parsed(code: str) -> slices.Loop:
    loop = ast.parse(textwrap.dedent(code).strip()).body[0]
    assert isinstance(loop, slices.Loop)
    return loop


LOOK = Recorder()


def make_batch(i: int) -> list[int]:
    LOOK(3)
    return [i]


def train_step(batch: list[int]) -> int:
    LOOK(6, RUNNING)
    return len(batch)


def train(turns_: int, *, log: Callable[[int], None]) -> None:
    for i in range(turns_):
        total = train_step(make_batch(i))
        log(total)


@pytest.fixture
def looks() -> Iterator[list[Sample]]:
    LOOK.looks.clear()
    train(10, log=lambda total: LOOK(1))
    yield list(LOOK.looks)
    LOOK.looks.clear()


def test_the_parts_of_a_loop(looks: list[Sample]) -> None:
    parts, unclear = parts_of(looks, cast())
    assert not unclear
    assert {part.kind: round(part.share, 3) for part in parts} == {
        "input": 0.3,
        "step": 0.6,
        "host": 0.1,
    }
    first = train.__code__.co_firstlineno
    assert {part.kind: part.place.line - first for part in parts} == {
        "input": 2,
        "step": 2,
        "host": 3,
    }
    by_kind = {part.kind: part for part in parts}
    assert by_kind["input"].busy == {ev.SLEEP: 1.0}
    assert by_kind["step"].busy == {ev.NATIVE: 1.0}
    inner = by_kind["input"].inner
    assert inner is not None
    assert inner.function == "make_batch"


def dot(count: int) -> None:
    LOOK(count, RUNNING)


def layers(turns_: int) -> None:
    turn = 0
    while turn < turns_:
        for _ in range(3):
            dot(2)
        turn += 1


def test_a_loop_that_only_repeats_is_the_step_of_the_one_around_it() -> None:
    LOOK.looks.clear()
    layers(10)
    (part,), unclear = parts_of(LOOK.looks, cast())
    assert not unclear
    found = find(LOOK.looks, cast())
    assert found is not None and found.node.lineno == layers.__code__.co_firstlineno + 2
    assert (part.kind, part.share) == ("step", 1.0)
    LOOK.looks.clear()


def test_the_loop_may_be_known(looks: list[Sample]) -> None:
    line = train.__code__.co_firstlineno + 1
    assert parts_of(looks, cast(), where=f"test_sample_loops.py:{line}") == parts_of(looks, cast())
    assert parts_of(looks, cast(), where="elsewhere.py:1") == parts_of(looks, cast()), (
        "a line that is on no stack"
    )


def rest(count: int) -> None:
    """The step: an accelerator that is only simulated; the sampler gets the lock here when the line
    before held it."""
    stack = stack_of(sys._getframe(1))
    for holder, many in ((False, 3), (True, 2)):
        LOOK.looks += [Sample(stack, "sleep", "", False, holder, holder)] * many


def statistics(turns_: int, *, sleep: Callable[[int], None]) -> None:
    turn = 0
    while turn < turns_:
        sleep(5)
        LOOK(3, RUNNING, True)
        turn += 1


def test_a_line_that_lets_the_lock_go_has_not_held_it() -> None:
    LOOK.looks.clear()
    statistics(10, sleep=rest)
    parts, _ = parts_of(LOOK.looks, cast())
    first = statistics.__code__.co_firstlineno
    assert {part.place.line - first: round(part.share, 3) for part in parts} == {3: 3 / 8, 4: 5 / 8}
    LOOK.looks.clear()


def test_what_holds_the_lock_is_seen_from_outside(looks: list[Sample]) -> None:
    """py-spy finds the thread with the lock in make_batch for half of the time, where the sampler
    never finds it."""
    known = cast()
    line = train.__code__.co_firstlineno + 2
    stack = f"thread (1): M;train ({__file__}:{line});make_batch ({__file__}:7) {ENOUGH_LOOKS // 2}"
    known.holders.add(stack, known.places, looks=ENOUGH_LOOKS, pid=1)
    parts, _ = parts_of(looks, known)
    by_kind = {part.kind: part for part in parts}
    assert by_kind["input"].share == pytest.approx(0.5 + 0.3 / 2)
    assert by_kind["input"].busy[ev.PYTHON] == pytest.approx(0.5 / 0.65)
    assert by_kind["step"].share == pytest.approx(0.6 / 2)


def test_parts_that_cannot_be_told(looks: list[Sample]) -> None:
    assert parts_of(looks[:3], cast()) == ((), ["parts of the loop: too few samples of its thread"])
    outside = [look._replace(stack=look.stack[-3:]) for look in looks]  # the test runner's frames
    parts, unclear = parts_of(outside, cast())
    assert not parts
    assert "no loop of the script's own" in unclear[0]


def test_turns_of_a_loop(looks: list[Sample]) -> None:
    """Ten turns of ten samples each; too few of them for a loop that is certain."""
    trace = [(i * 0.02, look) for i, look in enumerate(looks)]
    assert repeated_loop(trace, [{}] * len(trace), cast=cast()) is None
    LOOK.looks.clear()
    train(30, log=lambda total: LOOK(1))
    trace = [(i * 0.02, look) for i, look in enumerate(LOOK.looks)]
    loop = repeated_loop(trace, [{}] * len(trace), cast=cast(7))
    assert loop is not None
    assert (loop.kind, loop.waits, loop.thread, len(loop.steps)) == ("sampled", "modelled", 7, 28)
    assert loop.where.endswith(f"test_sample_loops.py:{train.__code__.co_firstlineno + 1}")
    assert loop.steps[0].end_s - loop.steps[0].begin_s == pytest.approx(0.2)
    assert loop.steps[0].wait_s == pytest.approx(0.2 * 0.3)


def test_turns_that_are_too_short_are_not_counted() -> None:
    assert turns([(i * 0.02, "step", i % 2) for i in range(200)]) == []


@given(st.integers(1, 64), st.integers(1, 50), st.integers(1, 30))
def test_a_counter_tells_the_number_of_steps(unit: int, per_look: int, looks: int) -> None:
    """A counter of records counts several for each step; the unit is what all of its growth is a
    multiple of."""
    turns_ = [0, 1, *(1 + per_look * i for i in range(1, looks + 1))]
    values = [unit * turn for turn in turns_]
    times = [0.02 * i for i in range(len(values))]
    steps = counted(times, values, kinds=["input", "step"])
    assert len(steps) == per_look * looks
    assert all(step.wait_s == pytest.approx((step.end_s - step.begin_s) / 2) for step in steps)
    assert steps[-1].end_s == pytest.approx(times[-1])


def test_a_counter_that_begins_again() -> None:
    values = [0, 1, 2, 3, 0, 1, 2, None, 2, 3, 4]
    assert len(counted(list(range(11)), values, kinds=["step"])) == 4
    assert counted([0.0, 1.0], [3, 3], kinds=["step"]) == []
    assert counted([0.0], [], kinds=["step"]) == []


def test_counters_of_a_loop() -> None:
    code = (
        "for i, x in enumerate(xs):\n    n += 1\n    for j in y:\n        m += 1\n    s += f(x)\n"
    )
    assert counters_of(parsed(code)) == ["i", "n", "s"]


def test_only_the_scripts_module_is_read() -> None:
    assert counts_of(sys._getframe()) == {}
    space: dict[str, object] = {"__name__": "__main__", "counts_of": counts_of, "sys": sys}
    exec("i, text, flag = 7, 'x', True\nfound = counts_of(sys._getframe())", space)
    assert space["found"] == {"i": 7}


def test_repeats_needs_samples() -> None:
    assert repeated_loop([], [], cast=cast(threading.get_ident())) is None


def test_what_a_script_does_before_its_loop_does_not_hide_it(looks: list[Sample]) -> None:
    """Data are read for longer than the loop has run."""
    sampler = Sampler(program="")
    before = [look._replace(stack=look.stack[-3:]) for look in looks] * 20
    LOOK.looks.clear()
    train(30, log=lambda total: LOOK(1))
    seen = [*before, *LOOK.looks]
    sampler._threads.trace.extend((i * 0.02, look) for i, look in enumerate(seen))
    sampler._threads.counts.extend({} for _ in seen)
    timeline = Timeline()
    found = sampler.turning(timeline)
    assert found is not None
    (loop,) = timeline.loops.values()
    assert loop.where.endswith(f"test_sample_loops.py:{train.__code__.co_firstlineno + 1}")
    again = sampler.turning(timeline)
    assert again is not None and again.same(found)
    assert sampler.repeated() is not None


def test_what_else_is_done_in_the_line_that_asks_is_input(looks: list[Sample]) -> None:
    line = train.__code__.co_firstlineno + 3  # log(total), which is the host's elsewhere
    for asks, kind in ((True, "input"), (False, "step")):
        parts, _ = parts_of(looks, cast(), where=f"test_sample_loops.py:{line}", asks=asks)
        assert {part.kind: round(part.share, 3) for part in parts if part.place.line == line} == {
            kind: 0.1
        }
