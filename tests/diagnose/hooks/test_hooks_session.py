"""Hooks of sessions: their observations, and no effect on the script."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed.diagnose.hooks import session_runs
from fastfeed.diagnose.hooks.session_plan import converts, fed_leaves
from tests.diagnose.hooked import Clock, loops, watched
from tests.diagnose.queued import ROWS, Graph

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1


def test_a_step_waits_until_another_thread_has_put_enough(build: Any) -> None:
    graph = build()
    asked = threading.Semaphore(0)

    def produce(log: Any) -> None:
        for _ in range(6):
            asked.acquire()
            while trainer not in log.waiting:
                idle.wait(0.001)
            idle.wait(0.03)  # a batch is made
            graph.fill(*range(ROWS))

    with watched("tensorflow", "session") as log:
        trainer, idle = threading.get_ident(), threading.Event()
        producer = threading.Thread(target=produce, args=(log,), name="maker")
        producer.start()
        for _ in range(6):
            asked.release()
            assert graph.session.run(graph.step) == 6
        producer.join()
    (loop,) = loops(log, "session")
    assert max(step.wait_s for step in loop.steps) > 0.01
    assert all(step.wait_s <= step.end_s - step.begin_s for step in loop.steps)
    assert not any(step.free for step in loop.steps)
    assert (loop.waits, loop.buffer, loop.thread) == ("modelled", 25, trainer)
    assert loop.where.startswith("test_hooks_session.py:")
    assert "FIFOQueueV2 of 100" in loop.note
    batches = [mark for mark in log.timeline.marks if mark.kind == "batch"]
    assert {mark.label for mark in batches} == {"maker"}
    assert len(batches) == 5 and all(mark.end_s - mark.start_s > 0.02 for mark in batches)


def test_a_queue_that_keeps_a_minimum(build: Any) -> None:
    graph = build(minimum=ROWS)
    with watched("tensorflow", "session") as log:
        graph.fill(*range(3 * ROWS))
        graph.session.run([graph.step])
    (loop,) = loops(log, "session")
    assert (loop.buffer, loop.waits) == (24, "hidden")
    assert f"at least {ROWS} kept" in loop.note


@pytest.mark.parametrize("way", ["run", "make_callable"])
def test_every_way_to_run_is_seen_and_gives_the_same(way: str, build: Any) -> None:
    def steps(graph: Graph) -> list[Any]:
        graph.fill(*range(6 * ROWS))
        if way == "run":
            return [graph.session.run({"a": graph.step, "b": [graph.step]}) for _ in range(6)]
        plain = graph.session.make_callable([graph.step], [graph.value])
        return [plain(np.zeros(1)) for _ in range(6)]

    expected = steps(build())
    with watched("tensorflow", "session") as log:
        assert steps(build()) == expected
    (loop,) = loops(log, "session")
    assert [step.wait_s <= step.end_s - step.begin_s for step in loop.steps] == [True] * 6
    assert loop.waits == "modelled"


def test_a_monitored_loop_is_one_loop_and_its_hooks_are_marks(tmp_path: Path) -> None:
    """The hooks fetch other things at other steps."""
    with watched("tensorflow", "session") as log, tf.Graph().as_default():
        total = tf1.train.get_or_create_global_step()
        step = tf.identity(tf1.assign_add(total, 1), name="train")
        with tf1.train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path),
            save_checkpoint_steps=4,
            save_summaries_steps=None,
            log_step_count_steps=3,
        ) as session:
            for _ in range(10):
                session.run(step)
    tf1.summary.FileWriterCache.clear()  # closes what the session's hooks have opened
    (loop,) = (loop for loop in loops(log, "session") if "train:0" in loop.name)
    assert (len(loop.steps), loop.waits, loop.buffer) == (10, "none", 0)
    assert sum(mark.kind == "checkpoint" for mark in log.timeline.marks) >= 3


def test_queue_runners_are_seen(build: Any) -> None:
    with watched("tensorflow", "session") as log, tf.Graph().as_default():
        queue = tf1.FIFOQueue(8, [tf.float32], shapes=[()])
        put = queue.enqueue_many([tf.zeros(2)])
        taken = queue.dequeue_many(4)
        tf1.train.add_queue_runner(tf1.train.QueueRunner(queue, [put] * 2))
        with tf1.Session() as session:
            coordinator = tf1.train.Coordinator()
            threads = tf1.train.start_queue_runners(session, coordinator)
            for _ in range(20):
                session.run(taken)
            coordinator.request_stop()
            coordinator.join(threads)
    (loop,) = loops(log, "session")
    assert (len(loop.steps), loop.waits) == (20, "modelled")


def test_shapes_as_tensorflow_1_has_them(build: Any) -> None:
    """A script that calls `disable_v2_behavior` has sizes that are objects."""
    tf1.disable_v2_tensorshape()
    try:
        with watched("tensorflow", "session") as log:
            graph = build()
            graph.fill(*range(5 * ROWS))
            for _ in range(5):
                graph.session.run(graph.step)
    finally:
        tf1.enable_v2_tensorshape()
    (loop,) = loops(log, "session")
    assert (len(loop.steps), loop.waits) == (5, "modelled")


def test_fed_values_are_told_and_nothing_is_waited_for() -> None:
    with watched("tensorflow", "session") as log, tf.Graph().as_default():
        x = tf1.placeholder(tf.float32, (None, 3), name="x")
        rate = tf1.placeholder(tf.float32, (), name="rate")
        step = tf.reduce_sum(x) * rate
        with tf1.Session() as session:
            for _ in range(6):
                session.run(step, {x: np.ones((2, 3)), "rate:0": 0.5})
    (loop,) = loops(log, "session")
    assert (loop.waits, loop.buffer, [step.wait_s for step in loop.steps]) == ("none", 0, [0.0] * 6)
    (leaf,) = loop.leaves
    assert (leaf.dtype, leaf.shape, leaf.kind) == ("float64", (2, 3), "numpy.ndarray")


def test_a_step_has_converted_its_feed_as_long_as_its_arrays_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(session_runs, "time", clock)

    class Rows:
        def __array__(self, *args: Any, **options: Any) -> Any:
            clock.advance(3.0)
            return np.ones(4, np.float32)

    def work(x: Any) -> Any:
        clock.advance(2.0)
        return x

    with watched("tensorflow", "session") as log, tf.Graph().as_default():
        x = tf1.placeholder(tf.float32, (4,))
        step, rest = (tf.reduce_sum(tf.numpy_function(work, [y], tf.float32)) for y in (x, 2.0))
        with tf1.Session() as session:
            for _ in range(3):
                assert session.run(step, {x: Rows()}) == 4
                assert session.run(rest) == 2
    times = [
        [(one.wait_s, one.converted_s, one.end_s - one.begin_s) for one in loop.steps]
        for loop in loops(log, "session")
    ]
    assert times == [[(0.0, 3.0, 5.0)] * 3, [(0.0, 0.0, 2.0)] * 3]


@pytest.mark.parametrize(
    ("fed", "converted"),
    [
        (np.ones((2, 3), np.float32), False),
        (np.ones((2, 3)), True),
        ([[1.0, 2.0, 3.0]], True),
        (np.float64(1), False),
        ((np.zeros((5, 2), np.int64), np.ones(5), (3, 4)), True),
    ],
)
def test_only_arrays_of_another_type_are_converted(fed: Any, converted: bool) -> None:
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32)
    assert converts(graph, {x: fed}) == converts(graph, {"Placeholder:0": fed}) == converted
    assert not converts(graph, {"nobody:0": fed})


def test_losses_and_graphs_are_the_same_to_the_last_bit() -> None:
    def train() -> tuple[list[bytes], int]:
        with tf.Graph().as_default() as graph:
            tf1.set_random_seed(3)
            queue = tf1.FIFOQueue(100, [tf.float32], shapes=[(3,)])
            value = tf1.placeholder(tf.float32, (None, 3))
            put = queue.enqueue_many([value])
            weight = tf1.get_variable("w", (3, 1), initializer=tf1.random_normal_initializer())
            loss = tf.reduce_mean(tf.nn.dropout(queue.dequeue_many(ROWS) @ weight, 0.5) ** 2)
            train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                found = []
                for i in range(40):
                    session.run(put, {value: np.full((ROWS, 3), i, np.float32)})
                    found.append(session.run([train_op, loss])[1].tobytes())
                return found, len(graph.get_operations())

    expected = train()
    with watched("tensorflow", "session", every=5) as log:
        assert train() == expected
    assert len(loops(log, "session")) >= 1


def test_errors_come_as_they_are(build: Any) -> None:
    def fail(graph: Graph) -> list[tuple[type, str]]:
        found = []
        graph.session.run(graph.close)
        for fetches, feeds in (
            (graph.step, None),
            (graph.put, {graph.value: [[1.0]]}),
            ("nobody:0", None),
            (3, None),
        ):
            with pytest.raises(Exception) as raised:  # noqa: PT011
                graph.session.run(fetches, feeds)
            found.append((type(raised.value), str(raised.value).split("\n")[0]))
        return found

    expected = fail(build())
    with watched("tensorflow", "session") as log:
        found = fail(build())
        assert [kind for kind, _ in found] == [kind for kind, _ in expected]
        assert [text for _, text in found][1:] == [text for _, text in expected][1:]
        log.missing.clear()  # fetches that are none cannot be followed
    assert [loop for loop in loops(log, "session") if loop.steps] == []


def test_nobody_watches_any_more(build: Any) -> None:
    plain = tf1.Session.run
    graph = build()
    with watched("tensorflow", "session") as log:
        assert tf1.Session.run is not plain
        log.active = False
        graph.fill(*range(ROWS))
        graph.session.run(graph.step)
    assert log.timeline.loops == {}
    assert tf1.Session.run == plain


def test_a_sparse_tensor_is_fed_as_three_arrays() -> None:
    fed = (np.zeros((5, 2), np.int64), np.ones(5, np.float32), (3, 4))
    leaves = fed_leaves({"x:0": fed, "y:0": np.float32(1)})
    assert [(leaf.path, leaf.dtype, leaf.shape) for leaf in leaves] == [
        ("feed['x:0']", "int64", (5, 2)),
        ("feed['x:0']", "float32", (5,)),
        ("feed['x:0']", "int64", (2,)),
    ]
