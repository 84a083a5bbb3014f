"""Loops that take their batches from a queue, a future or a pool: seen, and left as they are."""

from __future__ import annotations

import concurrent.futures._base as futures
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfeed.diagnose.hooks import queues
from fastfeed.diagnose.hooks.experiments import MAX_BATCHES, BurstInput, Experiments
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.steps.timeline import Loop, Timeline


class Always(Experiments):
    """Experiments whenever the next of `bursts` says so."""

    def __init__(self, log: HookLog, bursts: list[bool]) -> None:
        super().__init__(log)
        self.bursts, log.due_s = bursts, 0.0

    def is_due(self, loop: Loop) -> bool:
        return bool(self.bursts) and self.bursts.pop(0)

    def burst(self, source: BurstInput) -> None:
        self.plan(0.0, 600.0)
        super().burst(source)
        self._log.due_s = 0.0


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[HookLog]:
    monkeypatch.setattr(queues, "SETTLED_S", 0.0)  # what is not there now is not waited for
    yield from _installed(HookLog(Timeline()))


def _installed(log: HookLog) -> Iterator[HookLog]:
    undos: list[Callable[[], None]] = [queues.install(module, log) for module in (queue, futures)]
    yield log
    log.active = False
    for undo in undos:
        undo()


def loops(log: HookLog) -> list[Loop]:
    return list(log.timeline.loops.values())


def filled(count: int, **options: Any) -> Any:
    found: queue.Queue[Any] = queue.Queue(**options)
    for number in range(count):
        found.put(number)
    return found


def test_a_loop_over_a_queue(log: HookLog) -> None:
    batches = filled(10, maxsize=16)
    assert [batches.get() for _ in range(10)] == list(range(10))
    (loop,) = loops(log)
    assert (loop.kind, loop.waits, loop.buffer, len(loop.steps)) == ("queue", "exact", 16, 9)
    assert loop.where.startswith("test_hooks_queues.py:")


def test_a_small_queue_is_emptied_until_there_are_steps_enough() -> None:
    log = HookLog(Timeline())
    log.experiments = Always(log, [False, True])
    for _ in _installed(log):
        batches: queue.Queue[int] = queue.Queue(2)
        thread = threading.Thread(
            target=lambda put: [put(number) for number in range(30)], args=(batches.put,)
        )
        thread.start()
        assert [batches.get() for _ in range(30)] == list(range(30))
        thread.join(10)
    assert sum(step.free for loop in loops(log) for step in loop.steps) == MAX_BATCHES


def test_looking_without_waiting_is_no_step(log: HookLog) -> None:
    batches = filled(3)
    assert batches.get_nowait() == 0
    assert batches.get(block=False) == 1
    with pytest.raises(queue.Empty):
        filled(0).get(False)
    assert not loops(log)


def test_other_threads_are_no_training_loops(log: HookLog) -> None:
    batches = filled(5)
    thread = threading.Thread(target=lambda: [batches.get() for _ in range(5)])
    thread.start()
    thread.join(10)
    assert not loops(log)


def test_futures(log: HookLog) -> None:
    done: list[Future[int]] = [Future() for _ in range(4)]
    for number, future in enumerate(done):
        future.set_result(number)
    assert [future.result() for future in done] == [0, 1, 2, 3]
    (loop,) = loops(log)
    assert len(loop.steps) == 3


def test_a_queue_for_each_epoch(log: HookLog) -> None:
    for _ in range(3):
        batches = filled(4)
        for _ in range(4):
            batches.get()
    assert [mark.kind for mark in log.timeline.marks] == ["epoch", "epoch"]


def test_what_was_taken_ahead_is_had_first_by_whoever_asks(log: HookLog) -> None:
    log.experiments = Always(log, [False, True])
    batches = filled(6)
    found = [batches.get() for _ in range(3)]
    assert batches.qsize() == 0, "all is taken ahead"
    found.append(batches.get_nowait())
    found += [batches.get() for _ in range(2)]
    assert found == list(range(6))


@settings(max_examples=60)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.lists(st.booleans(), max_size=12))
def test_experiments_change_nothing(puts: list[int], bursts: list[bool]) -> None:
    """Several batches come at a time; each arrives once and in order, and so does the sentinel."""
    log = HookLog(Timeline())
    log.experiments = Always(log, bursts)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(queues, "SETTLED_S", 0.0)
        for _ in _installed(log):
            batches: queue.Queue[int | None] = queue.Queue()
            found, number = [], 0
            for i, count in enumerate(puts):
                for _ in range(count):
                    batches.put(number)
                    number += 1
                if i == len(puts) - 1:
                    batches.put(None)
                for _ in range(count):
                    found.append(batches.get())
            assert batches.get() is None
            assert found == list(range(number))
    free = sum(step.free for loop in loops(log) for step in loop.steps)
    assert free <= number + 1


def test_once_over_nothing_is_written(log: HookLog) -> None:
    log.active = False
    assert filled(1).get() == 0
    assert not loops(log)
