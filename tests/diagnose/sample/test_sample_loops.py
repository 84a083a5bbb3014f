"""Parts of a training loop, and its iterations, from samples of its thread."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.hooks.device_clock import DeviceClock
from fastfeed.diagnose.sample.iterations import sampled_loop, steps_between, steps_of
from fastfeed.diagnose.sample.loop_parts import locate, loop_parts, made_by_head
from fastfeed.diagnose.sample.sampler import Sampler
from fastfeed.diagnose.sample.states import CORE
from fastfeed.diagnose.sample.thread_samples import Sample, stack_of
from fastfeed.steps.timeline import Beats, DeviceGap, Timeline
from tests.diagnose.looking import Recorder, attribution

record = Recorder()


def make_batch(i: int) -> list[int]:
    record(3)
    return [i]


def train_step(batch: list[int]) -> int:
    record(6, CORE)
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


def test_a_generator_that_is_asked_in_the_line_of_the_step_is_input() -> None:
    train_on(batches())
    parts, _ = loop_parts(record.samples, attribution())
    assert {part.kind: round(part.share, 2) for part in parts} == {"input": 0.33, "step": 0.67}


def made(count: int) -> Iterator[list[int]]:
    for i in range(count):
        batch = make_batch(i)
        yield batch


def fit(count: int) -> None:
    for batch in made(count):
        crunch(batch)


def test_the_loop_of_a_generator_is_the_input_of_the_loop_around_it() -> None:
    fit(200)
    asked = [one for one in record.samples if any(c.co_name == "made" for c, _ in one.stack)]
    found = locate([*asked, *record.samples[:10]])
    assert found is not None and found.node.lineno == fit.__code__.co_firstlineno + 1


def repeat(turns_: int) -> None:
    stream = batches()
    turn = 0
    while turn < turns_:
        batch = next(stream)
        for _ in range(30):
            crunch(batch)
        turn += 1


def crunch(batch: list[int]) -> None:
    record(2, CORE)


def test_a_loop_that_only_repeats_is_the_step_of_the_one_around_it() -> None:
    repeat(10)
    found = locate(record.samples)
    assert found is not None and found.node.lineno == repeat.__code__.co_firstlineno + 3
    parts, _ = loop_parts(record.samples, attribution())
    assert {part.kind: round(part.share, 2) for part in parts} == {"input": 0.05, "step": 0.95}


def learn(epochs: int) -> None:
    stream = batches()
    for _ in range(epochs):
        for batch in itertools.islice(stream, 10):
            train_step(batch)
        for _ in range(6):
            crunch([6])


def test_the_loop_of_the_batches_in_a_loop_of_epochs() -> None:
    """What else an epoch does takes more than a tenth of the time, and is no part of a step."""
    learn(10)
    found = locate(record.samples)
    assert found is not None and found.node.lineno == learn.__code__.co_firstlineno + 3


def sampled_rows() -> list[int]:
    record(10)
    return [1] * 10


def learn_sampled(epochs: int) -> None:
    for _ in range(epochs):
        rows = sampled_rows()
        for row in rows:
            train_step([row])


def test_what_is_made_before_the_loop_of_an_epoch_is_a_part_where_steps_contain_it() -> None:
    learn_sampled(10)
    alone, _ = loop_parts(record.samples, attribution())
    parts, _ = loop_parts(record.samples, attribution(), epochs=True)
    assert [part.kind for part in alone] == ["step"]
    assert {part.kind: round(part.share, 2) for part in parts} == {"input": 0.14, "step": 0.86}
    inner = parts[1].inner
    assert inner is not None and inner.function == "sampled_rows"


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
        record(5, CORE)


def test_a_known_loop_with_an_evaluation_beside_it(samples: list[Sample]) -> None:
    """Its frame is on the stack for half of the time: its parts are found, and add up to that."""
    evaluate(20)
    samples = list(record.samples)
    where = f"test_sample_loops.py:{train.__code__.co_firstlineno + 1}"
    found = locate(samples, where=where)
    assert found is not None and found.code is train.__code__
    parts, unclear = loop_parts(samples, attribution(), where=where)
    assert not unclear
    assert {part.kind: round(part.share, 3) for part in parts} == {
        "input": 0.15,
        "step": 0.3,
        "host": 0.05,
    }
    unknown = locate(samples)
    assert unknown is None or unknown.code is not train.__code__


def rest(count: int) -> None:
    """The step of a simulated accelerator; the sampler gets the lock here if the line before held
    it."""
    stack = stack_of(sys._getframe(1))
    record.samples += [Sample(stack, ev.SLEEP)] * 3 + [Sample(stack, CORE, True, True)] * 2


def statistics(turns_: int, *, sleep: Callable[[int], None]) -> None:
    turn = 0
    while turn < turns_:
        sleep(5)
        record(3, CORE, True)
        turn += 1


def test_a_line_that_lets_the_lock_go_has_not_held_it() -> None:
    statistics(10, sleep=rest)
    parts, _ = loop_parts(record.samples, attribution())
    first = statistics.__code__.co_firstlineno
    assert {part.place.line - first: round(part.share, 3) for part in parts} == {3: 3 / 8, 4: 5 / 8}


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
    assert sampled_loop(trace, context=attribution()) is None
    record.samples.clear()
    train(30, log=lambda total: record(1))
    trace = [(i * 0.02, sample) for i, sample in enumerate(record.samples)]
    loop = sampled_loop(trace, context=attribution(7))
    assert loop is not None
    assert (loop.kind, loop.waits, loop.thread, len(loop.steps)) == ("sampled", "modelled", 7, 28)
    assert loop.where.endswith(f"test_sample_loops.py:{train.__code__.co_firstlineno + 1}")
    assert loop.steps[0].end_s - loop.steps[0].begin_s == pytest.approx(0.2)
    assert loop.steps[0].wait_s == pytest.approx(0.2 * 0.3)
    where = train.__code__.co_filename, train.__code__.co_firstlineno + 1
    beats = Beats(gaps={where: [DeviceGap(0.1, 0.05)]})
    timed = sampled_loop(trace, context=attribution(7), beats=beats)
    assert timed is not None and timed.device_gaps == [], "its body makes its input"


def test_the_device_times_a_loop_whose_head_makes_its_input() -> None:
    assert made_by_head({3: 96.0, 5: 4.0}, 3)
    assert not made_by_head({3: 90.0, 5: 10.0}, 3)
    assert not made_by_head({}, 3)


def test_turns_that_are_too_short_are_not_counted() -> None:
    assert steps_of([(i * 0.02, "step", i % 2) for i in range(200)]) == []


def test_beats_tell_short_iterations_apart() -> None:
    """One sample for each iteration, of which one in four is input."""
    seen = [(i * 0.02, "input" if i % 4 == 0 else "step", 3) for i in range(200)]
    beats = [0.011 + i * 0.02 for i in range(190)]
    steps = steps_between(beats, seen)
    assert len(steps) == 189
    assert steps[0] == pytest.approx((0.011, 0.031, 0.005, False, 0.0), rel=0.02)
    long = steps_between(
        [0.011, 1.011, 1.031], [*seen[:50], *((t, "host", 4) for t, *_ in seen[50:])]
    )
    assert long[0].wait_s == pytest.approx(0.24, abs=0.02)
    assert long[1].wait_s == 0.0


def test_iterations_that_no_sample_tells_apart_are_known_by_their_turns() -> None:
    """Of iterations of a fifth of a sample's time, all samples but a few meet the same line."""
    record.samples.clear()
    train(30, log=lambda total: record(1))
    step_only = record.samples[3]
    trace = [(i * 0.02, step_only) for i in range(200)]
    head = train.__code__.co_firstlineno + 1
    turns = {(train.__code__.co_filename, head): [0.001 + i * 0.004 for i in range(900)]}
    loop = sampled_loop(trace, context=attribution(7), beats=Beats(turns=turns))
    assert loop is not None
    assert len(loop.steps) == 899
    assert loop.steps[0].end_s - loop.steps[0].begin_s == pytest.approx(0.004)
    assert sampled_loop(trace, context=attribution(7)) is None


def test_a_loop_needs_samples() -> None:
    assert sampled_loop([], context=attribution(threading.get_ident())) is None


def test_what_a_script_does_before_its_loop_does_not_hide_it(samples: list[Sample]) -> None:
    """The script has read data for longer than the loop has run."""
    sampler = Sampler(program="")
    before = [sample._replace(stack=sample.stack[-3:]) for sample in samples] * 20
    record.samples.clear()
    train(30, log=lambda total: record(1))
    seen = [*before, *record.samples]
    sampler._threads.trace.extend((i * 0.02, sample) for i, sample in enumerate(seen))
    timeline = Timeline()
    found = sampler.track_iterations(timeline, DeviceClock(lambda what, error: None))
    assert found is not None
    (loop,) = timeline.loops.values()
    assert loop.where.endswith(f"test_sample_loops.py:{train.__code__.co_firstlineno + 1}")
    again = sampler.track_iterations(timeline, DeviceClock(lambda what, error: None))
    assert again is not None and again.tracks_same_loop(found)
    assert sampler.sampled_loop(lambda thread: Beats()) is not None


def test_what_else_is_done_in_the_line_that_asks_is_input(samples: list[Sample]) -> None:
    line = train.__code__.co_firstlineno + 3  # log(total), which is a host part elsewhere
    for asks, kind in ((True, "input"), (False, "step")):
        parts, _ = loop_parts(
            samples, attribution(), where=f"test_sample_loops.py:{line}", fetches=asks
        )
        assert {part.kind: round(part.share, 3) for part in parts if part.place.line == line} == {
            kind: 0.1
        }
