"""From looks at threads to tasks: those that live only while they work, and those that let the lock
go."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.sample.tasks import AttributionContext, thread_tasks
from fastfeed.diagnose.sample.thread_log import (
    Sample,
    ThreadLog,
    ThreadStack,
    stack_of,
)
from fastfeed.probes.places import Places
from fastfeed.probes.procfs import Counters
from fastfeed.probes.pyspy import StackSamples

SAMPLES = 100


def cast() -> AttributionContext:
    return AttributionContext(0, SAMPLES, 0, 0, StackSamples(), Places(), loop_tid=1)


def here(call: str = "sleep", *, holder: bool = False) -> Sample:
    return Sample(stack_of(sys._getframe(1)), call, "", False, holder, holder)


def foreign(tid: int, moments: Iterable[int]) -> ThreadLog:
    """A thread of tf.data, which has Python frames at these moments."""
    log = ThreadLog(tid, "")
    log.files.close()
    log.ident, log.wall_s = tid, 10.0
    log.moments = dict.fromkeys(moments, here())
    log.looks[here()] = len(log.moments)
    return log


@pytest.mark.parametrize(
    ("second", "idle", "producers"),
    [
        (range(0, 50), 0.5, 2),
        (range(50, 100), 0.0, 1),
        (range(25, 75), 0.5, 2),
        (range(0), 0.5, 1),
        (range(49, 51), 0.48, 1),  # takes over from the other
    ],
)
def test_threads_that_come_and_go_are_idle_while_they_are_not_seen(
    second: range, idle: float, producers: int
) -> None:
    """As many producers as work at once; what one of them does not work, it is asked for nothing."""
    (task,) = thread_tasks([foreign(1, range(50)), foreign(2, second)], cast())
    assert (task.role, task.producers) == (ev.PRODUCER, producers)
    assert task.share(ev.FULL) == pytest.approx(idle, abs=0.01)
    assert task.share(ev.SLEEP) == pytest.approx(1 - idle, abs=0.01)


class Copies:
    """Looks at itself while it is in a call of that name."""

    def __init__(self) -> None:
        self.look = here()

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        self.look = Sample(stack_of(sys._getframe(1)), "futex", "", False, True, True)
        return np.zeros(3)


@pytest.mark.parametrize(("late", "state"), [(40, ev.LOCK_PYTHON), (20, ev.LOCK)])
def test_where_the_lock_is_held_most_of_the_time_it_is_so_when_nobody_can_tell(
    late: int, state: str
) -> None:
    """The sampler waited for a core, and not for the lock, in half of its samples."""
    one = Copies()
    np.asarray(one)
    log = foreign(1, ())
    log.name, log.foreign = "loads", False
    log.looks.clear()
    log.looks[one.look._replace(holder=False, late=False)] = SAMPLES
    (task,) = thread_tasks([log], replace(cast(), late=late, blind=SAMPLES // 2))
    assert task.busy == {state: 1.0}


@pytest.mark.parametrize(
    ("holder", "system_s", "copying"),
    # the last one takes back the memory of its copies
    [(True, 2.0, 0.0), (False, 2.0, 1.0), (True, 6.0, 1.0)],
)
def test_a_copy_that_lets_the_lock_go_has_not_held_it(
    holder: bool, system_s: float, copying: float
) -> None:
    one, target = Copies(), np.zeros(3)
    np.copyto(target, one)
    log = foreign(1, ())
    log.name, log.foreign = "loads", False
    log.last = Counters(cpu_s=9.0, system_s=system_s)
    log.looks.clear()
    log.looks[one.look._replace(call="running", holder=holder, late=holder)] = SAMPLES
    (task,) = thread_tasks([log], cast())
    assert task.copying == copying


def test_a_conversion_of_numbers_in_lists_has_held_it() -> None:
    one = Copies()
    np.asarray(one)
    assert cast().work(one.look._replace(call="futex")) == "copying"


def test_a_stack_that_was_seen_before_is_that_one() -> None:
    """To hash and compare the code of its functions takes longer than all else about a sample."""
    known: dict[tuple[int, ...], ThreadStack] = {}
    one, again = [stack_of(sys._getframe(), known) for _ in range(2)]
    other = stack_of(sys._getframe(), known)
    assert one is again
    assert other != one
    assert len({one, again, other}) == len(known) == 2
