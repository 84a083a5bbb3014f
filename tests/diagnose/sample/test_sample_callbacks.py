"""Python in a framework's own threads: producers of batches, and callbacks that are part of the
step."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.evidence import Task
from fastfeed.diagnose.sample.tasks import (
    AttributionContext,
    Span,
    thread_tasks,
    without_callbacks,
)
from fastfeed.diagnose.sample.thread_samples import Sample, ThreadLog, ThreadStack, stack_of
from fastfeed.probes.places import Places
from fastfeed.probes.pyspy import StackSamples

SAMPLES = 200
CONTEXT = AttributionContext(0, SAMPLES, 0, 0, StackSamples(), Places(), loop_tid=1)


def sample() -> Sample:
    """A sample of the caller's frame alone."""
    return Sample(ThreadStack(stack_of(sys._getframe(1))[:1]), ev.SLEEP)


def makes() -> Sample:
    return sample()


def chip() -> Sample:
    return sample()


def thread(**moments: range) -> ThreadLog:
    """A thread that Python did not start, which is in these functions at these times."""
    log = ThreadLog(7)
    log.files.close()
    log.ident, log.wall_s = 7, 10.0
    for name, times in moments.items():
        at = {"makes": makes, "chip": chip}[name]()
        for when in times:
            log.add(at, float(when), times=1)
    return log


def task_of(log: ThreadLog, waits: Sequence[Span]) -> Task:
    (task,) = thread_tasks(without_callbacks([log], waits, context=CONTEXT), CONTEXT)
    return task


def test_what_runs_while_nobody_waits_is_the_step() -> None:
    """The same threads also produce the batches: their work in the step is no part of that."""
    log = thread(makes=range(100), chip=range(100, 200))
    task = task_of(log, [(-1.0, 99.5)])
    assert task.role == ev.PRODUCER
    assert {stack[-1].function for stack in task.stacks} == {"makes"}
    assert task.share(ev.EMPTY) == pytest.approx(0.5)


def test_threads_with_nothing_else_to_do_are_the_frameworks() -> None:
    assert task_of(thread(chip=range(100, 200)), [(-1.0, 99.5)]).role == ev.FRAMEWORK


def test_a_call_that_waits_and_takes_its_step() -> None:
    """A session's run dequeues its batch: the first half of each is a wait."""
    log = thread(makes=range(2, SAMPLES, 10), chip=range(7, SAMPLES, 10))
    task = task_of(log, [(float(begin), begin + 5.0) for begin in range(0, SAMPLES, 10)])
    assert {stack[-1].function for stack in task.stacks} == {"makes"}


@pytest.mark.parametrize(
    ("waits", "moments"),
    [
        ([(-1.0, 99.5)], range(90, 190)),  # it produces batches all the time
        ([(-1.0, 4.0), (195.0, 199.0)], range(100, 195)),  # the loop hardly waits
        ([], range(100, 200)),  # the waits are unknown
        ([(-1.0, 99.5)], range(100, 110)),  # too few samples
    ],
    ids=["makes", "no wait", "unknown", "seldom"],
)
def test_who_may_make_batches_is_a_producer(waits: list[Span], moments: range) -> None:
    task = task_of(thread(makes=moments), waits)
    assert task.role == ev.PRODUCER
    assert sum(task.stacks.values()) == len(moments)
