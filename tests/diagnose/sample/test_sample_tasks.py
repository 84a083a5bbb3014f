"""Tasks of threads that live only while they work, and of threads that release the lock."""

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


def attribution() -> AttributionContext:
    return AttributionContext(0, SAMPLES, 0, 0, StackSamples(), Places(), loop_tid=1)


def here(call: str = "sleep", *, holder: bool = False) -> Sample:
    return Sample(stack_of(sys._getframe(1)), call, "", False, holder, holder)


def foreign(tid: int, moments: Iterable[int]) -> ThreadLog:
    """A thread of tf.data, which has Python frames in these samples."""
    log = ThreadLog(tid, "")
    log.files.close()
    log.ident, log.wall_s = tid, 10.0
    log.by_number = dict.fromkeys(moments, here())
    log.samples[here()] = len(log.by_number)
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
    """The number of producers is the number that works at once; an idle producer waits for room."""
    (task,) = thread_tasks([foreign(1, range(50)), foreign(2, second)], attribution())
    assert (task.role, task.producers) == (ev.PRODUCER, producers)
    assert task.share(ev.FULL) == pytest.approx(idle, abs=0.01)
    assert task.share(ev.SLEEP) == pytest.approx(1 - idle, abs=0.01)


class Copies:
    """Samples itself while it is in a call of that name."""

    def __init__(self) -> None:
        self.sample = here()

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        self.sample = Sample(stack_of(sys._getframe(1)), "futex", "", False, True, True)
        return np.zeros(3)


@pytest.mark.parametrize(("late", "state"), [(40, ev.LOCK_PYTHON), (20, ev.LOCK)])
def test_where_the_lock_is_held_most_of_the_time_it_is_so_when_nobody_can_tell(
    late: int, state: str
) -> None:
    """In half of its samples, the sampler waited for a core and not for the lock."""
    one = Copies()
    np.asarray(one)
    log = foreign(1, ())
    log.name, log.foreign = "loads", False
    log.samples.clear()
    log.samples[one.sample._replace(holder=False, late=False)] = SAMPLES
    (task,) = thread_tasks([log], replace(attribution(), late=late, blind=SAMPLES // 2))
    assert task.busy == {state: 1.0}


@pytest.mark.parametrize(
    ("holder", "system_s", "copying"),
    # The last one takes back the memory of its copies.
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
    log.samples.clear()
    log.samples[one.sample._replace(call="running", holder=holder, late=holder)] = SAMPLES
    (task,) = thread_tasks([log], attribution())
    assert task.copying == copying


def test_a_conversion_of_numbers_in_lists_has_held_it() -> None:
    one = Copies()
    np.asarray(one)
    assert attribution().work(one.sample._replace(call="futex")) == "copying"


def test_a_stack_that_was_seen_before_is_that_one() -> None:
    """Hashing and comparing the code of its functions takes longer than everything else about a
    sample."""
    known: dict[tuple[int, ...], ThreadStack] = {}
    one, again = [stack_of(sys._getframe(), known) for _ in range(2)]
    other = stack_of(sys._getframe(), known)
    assert one is again
    assert other != one
    assert len({one, again, other}) == len(known) == 2


def test_threads_of_compiled_programs_are_a_task_of_their_own() -> None:
    """They work one after the other: for 70 % of the time there is one that has work."""
    pools = [foreign(tid, ()) for tid in (1, 2, 3)]
    for log in pools:
        log.samples.clear()
        log.last = Counters(cpu_s=3.0)
    found = thread_tasks(pools, replace(attribution(), computing={2, 3}, computed=0.7))
    assert [(one.computes, one.threads, one.cpu_s) for one in found] == [
        (False, 1, 3.0),
        (True, 2, 6.0),
    ]
    assert found[1].busy == pytest.approx({ev.NATIVE: 0.7, ev.EMPTY: 0.3})
