"""Tasks of threads that live only while they work, and of threads that release the lock."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.sample.states import CORE
from fastfeed.diagnose.sample.tasks import AttributionContext, stack_weights, thread_tasks
from fastfeed.diagnose.sample.thread_samples import Sample, ThreadLog, ThreadStack, stack_of
from fastfeed.probes.places import Places
from fastfeed.probes.pyspy import StackSamples

SAMPLES = 100


def attribution() -> AttributionContext:
    return AttributionContext(0, SAMPLES, 0, 0, StackSamples(), Places(), loop_tid=1)


def here() -> Sample:
    return Sample(stack_of(sys._getframe(1)), ev.SLEEP)


def foreign(tid: int, moments: Iterable[int]) -> ThreadLog:
    """A thread of tf.data, which has Python frames in these samples."""
    log = ThreadLog(tid)
    log.files.close()
    log.ident, log.wall_s = tid, 10.0
    sample = here()
    for when in moments:
        log.add(sample, float(when), times=1)
    return log


@pytest.mark.parametrize(
    ("second", "idle", "producers"),
    [
        (range(0, 50), 0.5, 2),
        (range(50, 100), 0.0, 1),
        (range(25, 75), 0.0, 1),
        (range(49, 51), 0.48, 1),  # takes over from the other
    ],
)
def test_threads_that_come_and_go_are_idle_while_they_are_not_seen(
    second: range, idle: float, producers: int
) -> None:
    """The number of producers is the number that is at work at a time."""
    (task,) = thread_tasks([foreign(1, range(50)), foreign(2, second)], attribution())
    assert (task.role, task.producers) == (ev.PRODUCER, producers)
    assert task.share(ev.EMPTY) == pytest.approx(idle, abs=0.01)
    assert task.share(ev.SLEEP) == pytest.approx(1 - idle, abs=0.01)


class Copies:
    """Samples itself while it is in a call of that name."""

    def __init__(self) -> None:
        self.sample = here()

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        self.sample = Sample(stack_of(sys._getframe(1)), CORE)
        return np.zeros(3)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="what a line calls is unknown")
@pytest.mark.parametrize(
    ("more", "copying"),
    [
        ({}, 1.0),
        ({"holder": True}, 1.0),
        ({"state": ev.LOCK_PYTHON}, 1.0),
        ({"state": ev.SLEEP}, 0.0),
        ({"holder": True, "released": True}, 0.0),  # what held the lock came before
    ],
)
def test_who_copies(more: dict[str, Any], copying: float) -> None:
    one = Copies()
    np.asarray(one)
    log = foreign(1, ())
    log.name = "loads"
    log.samples[one.sample._replace(**more)] = SAMPLES
    (task,) = thread_tasks([log], attribution())
    assert task.copying == copying


def test_what_holds_the_lock_is_seen_from_outside() -> None:
    """py-spy finds the thread with the lock in `decode` half of the time, the sampler never."""
    context = attribution()
    context.holders.add("thread (1): M;decode (/data.py:7) 50", context.places, looks=100, pid=1)
    log = foreign(1, range(SAMPLES))
    held = here()._replace(state=CORE, holder=True)
    log.samples[held] = SAMPLES
    stacks, _ = stack_weights([log], context)
    counts = {stack[-1].function: count for stack, count in stacks.items()}
    assert counts == {"decode": SAMPLES, "foreign": SAMPLES}


def test_a_stack_that_was_seen_before_is_that_one() -> None:
    """Hashing and comparing the code of its functions takes longer than everything else about a
    sample."""
    known: dict[tuple[int, ...], ThreadStack] = {}
    one, again = [stack_of(sys._getframe(), known) for _ in range(2)]
    other = stack_of(sys._getframe(), known)
    assert one is again
    assert other != one
    assert len({one, again, other}) == len(known) == 2
