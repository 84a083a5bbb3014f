"""Experiments on loops that read a queue."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fastfeed.diagnose.hooks import session_burst
from tests.diagnose.hooked import Every, kinds, loops, watched
from tests.diagnose.queued import ROWS

tf = pytest.importorskip("tensorflow")


def test_an_experiment_frees_steps_and_changes_no_order(
    build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_burst, "RECENT_STEPS", 2)
    graph = build(capacity=10 * ROWS)
    taken: list[float] = []
    order = iter(range(1, 10_000))
    stop = threading.Event()

    def produce() -> None:
        while not stop.is_set():
            number = next(order)
            try:
                graph.fill(*[number] * ROWS)
            except tf.errors.CancelledError:
                return

    with watched("tensorflow", "session", experiments=Every(10)) as log:
        producer = threading.Thread(target=produce)
        producer.start()
        try:
            taken += [float(graph.session.run(graph.step)) / ROWS for _ in range(60)]
        finally:
            stop.set()
            with graph.graph.as_default():
                cancel = graph.queue.close(cancel_pending_enqueues=True)
            graph.session.run(cancel)
            producer.join()
    assert taken == list(range(1, 61))
    (loop,) = loops(log, "session")
    free = [step for step in loop.steps if step.free]
    assert len(free) >= session_burst.MIN_BURST_STEPS
    assert len(loop.steps) == 60
    assert log.experiments.bursts >= 1
    assert "experiment" in kinds(log)


def test_who_fills_the_queue_himself_is_not_held(
    build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_burst, "RECENT_STEPS", 1)
    monkeypatch.setattr(session_burst, "MAX_HOLD_S", 1e9)
    graph = build()
    with watched("tensorflow", "session", experiments=Every(1)) as log:
        for _ in range(5):
            graph.fill(*range(ROWS))
            graph.session.run(graph.step)
    (loop,) = loops(log, "session")
    assert [step.free for step in loop.steps] == [False] * 5
    assert log.experiments.asked == 0


def test_a_producer_is_let_go_when_a_burst_ends_early(
    build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step fails amid the burst: who puts next is not held for the time that the burst had
    left."""
    monkeypatch.setattr(session_burst, "RECENT_STEPS", 1)
    monkeypatch.setattr(session_burst, "HOLD_FACTOR", 1e9)
    failing = threading.Event()

    def inside() -> None:
        if failing.is_set():
            raise ValueError("no more")

    graph = build(inside)
    with watched("tensorflow", "session", experiments=Every(1)) as log:
        producer = threading.Thread(target=graph.fill, args=range(8 * ROWS))
        producer.start()
        producer.join()
        monkeypatch.setattr(session_burst, "MAX_HOLD_S", 0.001)
        graph.session.run(graph.step)
        graph.session.run(graph.step)  # of a burst
        failing.set()
        with pytest.raises(tf.errors.OpError):
            graph.session.run(graph.step)
        graph.fill(*range(ROWS))
    (loop,) = loops(log, "session")
    assert [step.free for step in loop.steps] == [False, True]
