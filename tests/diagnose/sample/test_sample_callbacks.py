"""Python in a framework's own threads: producers of batches, and callbacks that are part of the
step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import pytest

from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.evidence import LoopPart, Task
from fastfeed.diagnose.sample.callbacks import drop_callbacks, waiting_samples
from fastfeed.diagnose.sample.tasks import AttributionContext, thread_tasks
from fastfeed.diagnose.sample.thread_log import (
    Sample,
    ThreadLog,
    ThreadStack,
    stack_of,
)
from fastfeed.probes.places import Places
from fastfeed.probes.pyspy import StackSamples
from fastfeed.steps.timeline import Step

SAMPLES = 200


def sample() -> Sample:
    """A sample of the caller's frame alone."""
    return Sample(ThreadStack(stack_of(sys._getframe(1))[:1]), "sleep", "", False, False)


def fetches() -> Sample:
    return sample()


def steps() -> Sample:
    return sample()


def makes() -> Sample:
    return sample()


def chip() -> Sample:
    return sample()


CONTEXT = AttributionContext(0, SAMPLES, 0, 0, StackSamples(), Places(), loop_tid=1)


def parts(function: Callable[[], Sample]) -> tuple[LoopPart, ...]:
    """A loop that fetches its input in this function."""
    return LoopPart("input", CONTEXT.places.of(function().stack[0]), 0.5), LoopPart(
        "step", CONTEXT.places.of(steps().stack[0]), 0.5
    )


def thread(**moments: range) -> ThreadLog:
    """A thread that Python did not start, which is in these functions at these samples."""
    log = ThreadLog(7, "")
    log.files.close()
    log.ident, log.wall_s = 7, 10.0
    for name, numbers in moments.items():
        at = {"makes": makes, "chip": chip}[name]()
        log.by_number.update(dict.fromkeys(numbers, at))
        log.samples[at] += len(numbers)
    return log


def waits(count: int, known: tuple[LoopPart, ...], *, took: Sequence[Step] = ()) -> frozenset[int]:
    """The loop's thread waits in `count` samples, and then takes its steps."""
    samples = [fetches()] * count + [steps()] * (SAMPLES - count)
    return waiting_samples(
        [(float(n), sample) for n, sample in enumerate(samples)],
        context=CONTEXT,
        parts=known,
        steps=took,
    )


def task_of(log: ThreadLog, waiting: frozenset[int]) -> Task:
    (task,) = thread_tasks(drop_callbacks([log], waiting, context=CONTEXT), CONTEXT)
    return task


def test_what_runs_while_nobody_waits_is_the_step() -> None:
    """The same threads also produce the batches: their work in the step is no part of that."""
    log = thread(makes=range(100), chip=range(100, 200))
    task = task_of(log, waits(100, parts(fetches)))
    assert task.role == ev.PRODUCER
    assert {stack[-1].function for stack in task.stacks} == {"makes"}
    assert task.share(ev.FULL) == pytest.approx(0.5)


def test_threads_with_nothing_else_to_do_are_the_frameworks() -> None:
    log = thread(chip=range(100, 200))
    task = task_of(log, waits(100, parts(fetches)))
    assert task.role == ev.FRAMEWORK


def test_a_call_that_waits_and_takes_its_step() -> None:
    """A session's run dequeues its batch: its lines do not show the waits, its steps do."""
    took = [Step(float(n), n + 10.0, 5.0) for n in range(0, SAMPLES, 10)]
    log = thread(makes=range(2, SAMPLES, 10), chip=range(7, SAMPLES, 10))
    task = task_of(log, waits(0, (), took=took))
    assert {stack[-1].function for stack in task.stacks} == {"makes"}


@pytest.mark.parametrize(
    ("count", "moments", "asked"),
    [
        (100, range(90, 190), True),  # it produces batches all the time
        (10, range(100, 200), True),  # the loop hardly waits
        (100, range(100, 200), False),  # the place of the wait is unknown
        (100, range(100, 110), True),  # too few samples
    ],
    ids=["makes", "no wait", "unknown", "seldom"],
)
def test_who_may_make_batches_is_a_producer(count: int, moments: range, asked: bool) -> None:
    log = thread(makes=moments)
    known = parts(fetches) if asked else ()
    task = task_of(log, waits(count, known))
    assert task.role == ev.PRODUCER
    assert sum(task.stacks.values()) == len(moments)
