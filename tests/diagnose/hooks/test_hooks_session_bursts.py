"""Experiments on loops that read a queue."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fastfeed.diagnose.hooks import session_burst
from fastfeed.diagnose.hooks.session_burst import QueuePuts
from tests.diagnose.hooked import Clock, Every, kinds, loops, watched
from tests.diagnose.queued import ROWS, Graph
from tests.helpers.dying import until

tf = pytest.importorskip("tensorflow")


@contextlib.contextmanager
def producing(graph: Graph) -> Iterator[threading.Thread]:
    """A thread that puts batches of 1, 2, ... into the queue, until the block is over."""
    stop = threading.Event()

    def produce() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                graph.fill(*[number] * ROWS)
            except tf.errors.CancelledError:
                return

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        yield producer
    finally:
        stop.set()
        with graph.graph.as_default():
            cancel = graph.queue.close(cancel_pending_enqueues=True)
        graph.session.run(cancel)
        producer.join(60)


def test_an_experiment_frees_steps_and_changes_no_order(build: Any) -> None:
    graph = build(capacity=10 * ROWS)
    with watched("tensorflow", "session", every=10) as log, producing(graph):
        taken = [float(graph.session.run(graph.step)) / ROWS for _ in range(60)]
    assert taken == list(range(1, 61))
    (loop,) = loops(log, "session")
    assert len(loop.steps) == 60
    assert any(step.free for step in loop.steps)
    assert "experiment" in kinds(log)


def test_who_fills_the_queue_himself_is_not_held(build: Any) -> None:
    graph = build()
    with watched("tensorflow", "session", every=1) as log:
        for _ in range(5):
            graph.fill(*range(ROWS))
            graph.session.run(graph.step)
    (loop,) = loops(log, "session")
    assert [step.free for step in loop.steps] == [False] * 5
    assert isinstance(log.experiments, Every) and log.experiments.asked == 0


def test_a_producer_is_let_go_when_a_burst_ends_early(
    build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step fails amid the burst: who puts next is not held for the time that the burst had
    left."""
    monkeypatch.setattr(session_burst, "HOLD_FACTOR", 1e9)
    failing = threading.Event()

    def inside() -> None:
        if failing.is_set():
            raise ValueError("no more")

    graph = build(inside, capacity=4 * ROWS)
    with watched("tensorflow", "session", every=1) as log:
        with producing(graph) as producer:
            graph.session.run(graph.step)
            until(lambda: "batch" in kinds(log), "a second put")
            graph.session.run(graph.step)  # of a burst
            failing.set()
            with pytest.raises(tf.errors.OpError):
                graph.session.run(graph.step)
        assert not producer.is_alive()
    (loop,) = loops(log, "session")
    assert len(loop.steps) == 2
    assert isinstance(log.experiments, Every) and log.experiments.bursts == 1


def test_a_put_that_takes_much_longer_than_usual_waits_for_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, puts = Clock(), QueuePuts()
    monkeypatch.setattr(session_burst, "time", clock)
    for _ in range(3):  # a graph that makes a batch in the run that puts it
        puts.begin(clock.now)
        clock.advance(1.0)
        puts.end(clock.now, done=True)
    puts.begin(clock.now)
    clock.advance(2.0)
    assert (puts.ended, puts.wait_for_room()) == (3, False)
    clock.advance(0.1)
    assert puts.wait_for_room()
    puts.end(clock.now, done=False)
    assert (puts.ended, puts.wait_for_room()) == (3, False)
