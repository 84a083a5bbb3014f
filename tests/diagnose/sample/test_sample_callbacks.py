"""Whose Python in a framework's own threads makes batches, and whose is a part of the step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import pytest

from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.evidence import LoopPart
from fastfeed.diagnose.sample.callbacks import waits_in, without_callbacks
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


def look() -> Sample:
    """At whoever calls it, as if nobody had called that."""
    return Sample(ThreadStack(stack_of(sys._getframe(1))[:1]), "sleep", "", False, False)


def asks() -> Sample:
    return look()


def steps() -> Sample:
    return look()


def makes() -> Sample:
    return look()


def chip() -> Sample:
    return look()


CAST = AttributionContext(0, SAMPLES, 0, 0, StackSamples(), Places(), loop_tid=1)


def parts(function: Callable[[], Sample]) -> tuple[LoopPart, ...]:
    """A loop that asks for its input there."""
    return LoopPart("input", CAST.places.of(function().stack[0]), 0.5), LoopPart(
        "step", CAST.places.of(steps().stack[0]), 0.5
    )


def thread(**moments: range) -> ThreadLog:
    """One that Python did not start, which is in these functions at these samples."""
    log = ThreadLog(7, "")
    log.files.close()
    log.ident, log.wall_s = 7, 10.0
    for name, numbers in moments.items():
        at = {"makes": makes, "chip": chip}[name]()
        log.moments.update(dict.fromkeys(numbers, at))
        log.looks[at] += len(numbers)
    return log


def waits(count: int, known: tuple[LoopPart, ...], *, took: Sequence[Step] = ()) -> frozenset[int]:
    """The loop's thread waits in so many samples, then it takes its steps."""
    looks = [asks()] * count + [steps()] * (SAMPLES - count)
    return waits_in(
        [(float(n), look) for n, look in enumerate(looks)], cast=CAST, parts=known, steps=took
    )


def test_what_runs_while_nobody_waits_is_the_step() -> None:
    """The same threads make the batches, too: what they do in the step is no part of that."""
    log = thread(makes=range(100), chip=range(100, 200))
    (task,) = thread_tasks(without_callbacks([log], waits(100, parts(asks)), cast=CAST), CAST)
    assert task.role == ev.PRODUCER
    assert {stack[-1].function for stack in task.stacks} == {"makes"}
    assert task.share(ev.FULL) == pytest.approx(0.5)


def test_threads_with_nothing_else_to_do_are_the_frameworks() -> None:
    log = thread(chip=range(100, 200))
    (task,) = thread_tasks(without_callbacks([log], waits(100, parts(asks)), cast=CAST), CAST)
    assert task.role == ev.FRAMEWORK


def test_a_call_that_waits_and_takes_its_step() -> None:
    """As a run of a session does that takes from a queue: its lines say nothing, how long its steps
    wait does."""
    took = [Step(float(n), n + 10.0, 5.0) for n in range(0, SAMPLES, 10)]
    log = thread(makes=range(2, SAMPLES, 10), chip=range(7, SAMPLES, 10))
    (task,) = thread_tasks(without_callbacks([log], waits(0, (), took=took), cast=CAST), CAST)
    assert {stack[-1].function for stack in task.stacks} == {"makes"}


@pytest.mark.parametrize(
    ("count", "moments", "asked"),
    [
        (100, range(90, 190), True),  # it makes batches all the time
        (10, range(100, 200), True),  # nobody waits
        (100, range(100, 200), False),  # and nobody knows where it would
        (100, range(100, 110), True),  # hardly seen
    ],
    ids=["makes", "no wait", "unknown", "seldom"],
)
def test_who_may_make_batches_is_a_producer(count: int, moments: range, asked: bool) -> None:
    log = thread(makes=moments)
    known = parts(asks) if asked else ()
    (task,) = thread_tasks(without_callbacks([log], waits(count, known), cast=CAST), CAST)
    assert task.role == ev.PRODUCER
    assert sum(task.stacks.values()) == len(moments)
