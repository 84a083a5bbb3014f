"""Parts of a training loop, and its iterations, from samples of its thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.sample.loops import locate, loop_parts
from fastfeed.diagnose.sample.repeats import (
    counter_names,
    sampled_loop,
    steps_from_counter,
    steps_from_lines,
)
from fastfeed.diagnose.sample.sampler import Sampler
from fastfeed.diagnose.sample.tasks import MIN_SPY_SAMPLES
from fastfeed.diagnose.sample.thread_log import Sample, module_integers, stack_of
from fastfeed.probes.procfs import RUNNING
from fastfeed.steps.timeline import Timeline
from tests.diagnose.looking import Recorder, attribution, parsed

record = Recorder()


def make_batch(i: int) -> list[int]:
    record(3)
    return [i]


def train_step(batch: list[int]) -> int:
    record(6, RUNNING)
    return len(batch)


def train(turns_: int, *, log: Callable[[int], None]) -> None:
    for i in range(turns_):
        total = train_step(make_batch(i))
        log(total)


def batches() -> Iterator[list[int]]:
    while True:
        record(3)
        yield [1]


def train_on(stream: Iterator[list[int]]) -> None:
    for _ in range(10):
        train_step(next(stream))


@pytest.fixture(autouse=True)
def nothing_recorded() -> Iterator[None]:
    record.samples.clear()
    yield
    record.samples.clear()


@pytest.fixture
def samples(nothing_recorded: None) -> list[Sample]:
    train(10, log=lambda total: record(1))
    return list(record.samples)


def test_the_parts_of_a_loop(samples: list[Sample]) -> None:
    parts, unclear = loop_parts(samples, attribution())
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
    record(count, RUNNING)


def layers(turns_: int) -> None:
    turn = 0
    while turn < turns_:
        for _ in range(3):
            dot(2)
        turn += 1


def test_a_generator_that_is_asked_in_the_line_of_the_step_is_input() -> None:
    train_on(batches())
    parts, _ = loop_parts(record.samples, attribution())
    assert {part.kind: round(part.share, 2) for part in parts} == {"input": 0.33, "step": 0.67}


def test_a_loop_that_only_repeats_is_the_step_of_the_one_around_it() -> None:
    layers(10)
    (part,), unclear = loop_parts(record.samples, attribution())
    assert not unclear
    found = locate(record.samples, attribution())
    assert found is not None and found.node.lineno == layers.__code__.co_firstlineno + 2
    assert (part.kind, part.share) == ("step", 1.0)


def test_the_loop_may_be_known(samples: list[Sample]) -> None:
    line = train.__code__.co_firstlineno + 1
    assert loop_parts(samples, attribution(), where=f"test_sample_loops.py:{line}") == loop_parts(
        samples, attribution()
    )
    assert loop_parts(samples, attribution(), where="elsewhere.py:1") == loop_parts(
        samples, attribution()
    ), "a line that is on no stack"


def evaluate(count: int) -> None:
    for _ in range(count):
        record(5, RUNNING)


def test_a_known_loop_with_an_evaluation_beside_it(samples: list[Sample]) -> None:
    """Its frame is on the stack for half of the time: its parts are found, and add up to that."""
    evaluate(20)
    samples = list(record.samples)
    where = f"test_sample_loops.py:{train.__code__.co_firstlineno + 1}"
    found = locate(samples, attribution(), where=where)
    assert found is not None and found.code is train.__code__
    parts, unclear = loop_parts(samples, attribution(), where=where)
    assert not unclear
    assert {part.kind: round(part.share, 3) for part in parts} == {
        "input": 0.15,
        "step": 0.3,
        "host": 0.05,
    }
    unknown = locate(samples, attribution())
    assert unknown is None or unknown.code is not train.__code__


def rest(count: int) -> None:
    """The step of a simulated accelerator; the sampler gets the lock here if the line before held
    it."""
    stack = stack_of(sys._getframe(1))
    for holder, many in ((False, 3), (True, 2)):
        record.samples += [Sample(stack, "sleep", "", False, holder, holder)] * many


def statistics(turns_: int, *, sleep: Callable[[int], None]) -> None:
    turn = 0
    while turn < turns_:
        sleep(5)
        record(3, RUNNING, True)
        turn += 1


def test_a_line_that_lets_the_lock_go_has_not_held_it() -> None:
    statistics(10, sleep=rest)
    parts, _ = loop_parts(record.samples, attribution())
    first = statistics.__code__.co_firstlineno
    assert {part.place.line - first: round(part.share, 3) for part in parts} == {3: 3 / 8, 4: 5 / 8}


def test_what_holds_the_lock_is_seen_from_outside(samples: list[Sample]) -> None:
    """py-spy finds the thread with the lock in make_batch half of the time, the sampler never
    does."""
    known = attribution()
    line = train.__code__.co_firstlineno + 2
    stack = (
        f"thread (1): M;train ({__file__}:{line});make_batch ({__file__}:7) {MIN_SPY_SAMPLES // 2}"
    )
    known.holders.add(stack, known.places, looks=MIN_SPY_SAMPLES, pid=1)
    parts, _ = loop_parts(samples, known)
    by_kind = {part.kind: part for part in parts}
    assert by_kind["input"].share == pytest.approx(0.5 + 0.3 / 2)
    assert by_kind["input"].busy[ev.PYTHON] == pytest.approx(0.5 / 0.65)
    assert by_kind["step"].share == pytest.approx(0.6 / 2)


def test_a_thread_that_has_the_lock_whenever_one_looks(samples: list[Sample]) -> None:
    known = attribution()
    line = train.__code__.co_firstlineno + 2
    stack = f"thread (1): M;train ({__file__}:{line});make_batch ({__file__}:7) {MIN_SPY_SAMPLES}"
    known.holders.add(stack, known.places, looks=MIN_SPY_SAMPLES, pid=1)
    parts, _ = loop_parts(samples, known)
    assert [(part.kind, part.share) for part in parts] == [("input", 1.0)]


def test_parts_that_cannot_be_told(samples: list[Sample]) -> None:
    assert loop_parts(samples[:3], attribution()) == (
        (),
        ["parts of the loop: too few samples of its thread"],
    )
    outside = [
        sample._replace(stack=sample.stack[-3:]) for sample in samples
    ]  # the test runner's frames
    parts, unclear = loop_parts(outside, attribution())
    assert not parts
    assert "no loop of the script's own" in unclear[0]


def test_turns_of_a_loop(samples: list[Sample]) -> None:
    """Ten iterations of ten samples each are too few for a loop."""
    trace = [(i * 0.02, sample) for i, sample in enumerate(samples)]
    assert sampled_loop(trace, [{}] * len(trace), context=attribution()) is None
    record.samples.clear()
    train(30, log=lambda total: record(1))
    trace = [(i * 0.02, sample) for i, sample in enumerate(record.samples)]
    loop = sampled_loop(trace, [{}] * len(trace), context=attribution(7))
    assert loop is not None
    assert (loop.kind, loop.waits, loop.thread, len(loop.steps)) == ("sampled", "modelled", 7, 28)
    assert loop.where.endswith(f"test_sample_loops.py:{train.__code__.co_firstlineno + 1}")
    assert loop.steps[0].end_s - loop.steps[0].begin_s == pytest.approx(0.2)
    assert loop.steps[0].wait_s == pytest.approx(0.2 * 0.3)


def test_turns_that_are_too_short_are_not_counted() -> None:
    assert steps_from_lines([(i * 0.02, "step", i % 2) for i in range(200)]) == []


@given(st.integers(1, 64), st.integers(1, 50), st.integers(1, 30))
def test_a_counter_tells_the_number_of_steps(unit: int, per_look: int, samples: int) -> None:
    """A counter of records grows by several per step; the unit is the common divisor of all
    growth."""
    turns_ = [0, 1, *(1 + per_look * i for i in range(1, samples + 1))]
    values = [unit * turn for turn in turns_]
    times = [0.02 * i for i in range(len(values))]
    steps = steps_from_counter(times, values, kinds=["input", "step"])
    assert len(steps) == per_look * samples
    assert all(step.wait_s == pytest.approx((step.end_s - step.begin_s) / 2) for step in steps)
    assert steps[-1].end_s == pytest.approx(times[-1])


def test_a_counter_that_begins_again() -> None:
    values = [0, 1, 2, 3, 0, 1, 2, None, 2, 3, 4]
    assert len(steps_from_counter(list(range(11)), values, kinds=["step"])) == 4
    assert steps_from_counter([0.0, 1.0], [3, 3], kinds=["step"]) == []
    assert steps_from_counter([0.0], [], kinds=["step"]) == []


def test_counters_of_a_loop() -> None:
    code = (
        "for i, x in enumerate(xs):\n    n += 1\n    for j in y:\n        m += 1\n    s += f(x)\n"
    )
    assert counter_names(parsed(code)) == ["i", "n", "s"]


def test_only_the_scripts_module_is_read() -> None:
    assert module_integers(sys._getframe()) == {}
    space: dict[str, object] = {
        "__name__": "__main__",
        "module_integers": module_integers,
        "sys": sys,
    }
    exec("i, text, flag = 7, 'x', True\nfound = module_integers(sys._getframe())", space)
    assert space["found"] == {"i": 7}


def test_repeats_needs_samples() -> None:
    assert sampled_loop([], [], context=attribution(threading.get_ident())) is None


def test_what_a_script_does_before_its_loop_does_not_hide_it(samples: list[Sample]) -> None:
    """The script has read data for longer than the loop has run."""
    sampler = Sampler(program="")
    before = [sample._replace(stack=sample.stack[-3:]) for sample in samples] * 20
    record.samples.clear()
    train(30, log=lambda total: record(1))
    seen = [*before, *record.samples]
    sampler._threads.trace.extend((i * 0.02, sample) for i, sample in enumerate(seen))
    sampler._threads.integers.extend({} for _ in seen)
    timeline = Timeline()
    found = sampler.track_iterations(timeline)
    assert found is not None
    (loop,) = timeline.loops.values()
    assert loop.where.endswith(f"test_sample_loops.py:{train.__code__.co_firstlineno + 1}")
    again = sampler.track_iterations(timeline)
    assert again is not None and again.tracks_same_loop(found)
    assert sampler.sampled_loop() is not None


def test_what_else_is_done_in_the_line_that_asks_is_input(samples: list[Sample]) -> None:
    line = train.__code__.co_firstlineno + 3  # log(total), which is a host part elsewhere
    for asks, kind in ((True, "input"), (False, "step")):
        parts, _ = loop_parts(
            samples, attribution(), where=f"test_sample_loops.py:{line}", fetches=asks
        )
        assert {part.kind: round(part.share, 3) for part in parts if part.place.line == line} == {
            kind: 0.1
        }
