"""Waits inside the graphs of session runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.diagnose.hooks import graph_waits
from fastfeed.diagnose.hooks.graph_waits import waited_s
from fastfeed.diagnose.hooks.wait_estimate import WaitEstimator
from tests.diagnose.hooked import loops, watched

MS = 1_000_000


@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.3]), min_size=4, max_size=60),
    st.sampled_from([0.0, 2.0]),
)
def test_a_computing_time_that_varies_adds_up_to_no_wait(off: list[float], wait: float) -> None:
    estimator = WaitEstimator()
    for one in (0.9, 1.0, 1.1):
        estimator.add(one)
    found = [estimator.wait_s(one + wait) for x in off for one in (1.0 + x, 1.0 - x)]
    assert sum(found) == pytest.approx(len(found) * wait, abs=0.61)
    assert all(0.0 <= one <= wait + 0.31 for one in found)


def test_nothing_is_known_before_computing_was_seen() -> None:
    estimator = WaitEstimator()
    estimator.add(1.0)
    assert (estimator.known, estimator.wait_s(50.0)) == (False, 0.0)


def stats(*nodes: tuple[str, str, int, int]) -> Any:
    made = [
        SimpleNamespace(
            node_name=name,
            timeline_label=label,
            all_start_nanos=at * MS,
            all_end_rel_nanos=long * MS,
            all_start_micros=0,
        )
        for name, label, at, long in nodes
    ]
    return SimpleNamespace(
        dev_stats=[SimpleNamespace(node_stats=made[:1]), SimpleNamespace(node_stats=made[1:])]
    )


@pytest.mark.parametrize(
    ("nodes", "expected_ms"),
    [
        (
            [("next", "next = IteratorGetNext(it)", 0, 30), ("mul", "mul = MatMul(next)", 30, 10)],
            30,
        ),
        # beside it
        ([("next", "next = IteratorGetNext(it)", 0, 30), ("mul", "mul = MatMul(w)", 10, 15)], 15),
        # for it
        (
            [("next", "next = IteratorGetNext(it)", 0, 30), ("recv", "edge_3_next @ GPU:0", 0, 30)],
            30,
        ),
        ([("mul", "mul = MatMul(w)", 0, 15)], 0),
    ],
)
def test_waiting_is_where_nothing_else_runs(nodes: Any, expected_ms: float) -> None:
    assert waited_s(stats(*nodes), {"next"}) == pytest.approx(expected_ms / 1000)


def train(rows: Any, *, steps: int, monitored: str = "") -> tuple[list[bytes], int]:
    """Losses, and how many operations the graph has."""
    tf = pytest.importorskip("tensorflow")
    tf1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(3)
        dataset = tf1.data.Dataset.from_generator(rows, tf.float32, (4, 3)).shuffle(5, seed=2)
        iterator = tf1.data.make_initializable_iterator(dataset)
        weight = tf1.get_variable("w", (3, 1), initializer=tf1.random_normal_initializer())
        loss = tf.reduce_mean(tf.nn.dropout(iterator.get_next() @ weight, 0.5) ** 2)
        total = tf1.train.get_or_create_global_step()
        step = tf1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=total)
        tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        options = {
            "save_summaries_steps": None,
            "log_step_count_steps": None,
            "checkpoint_dir": monitored or None,
        }
        made = tf1.train.MonitoredTrainingSession(**options) if monitored else tf1.Session()
        with made as session:
            if not monitored:
                session.run([tf1.global_variables_initializer(), iterator.initializer])
            found = [session.run([step, loss])[1].tobytes() for _ in range(steps)]
        tf1.summary.FileWriterCache.clear()  # closes what a monitored session's hooks have opened
        return found, len(graph.get_operations())


def rows() -> Iterator[Any]:
    for i in range(40):
        yield np.full((4, 3), i, np.float32)


@pytest.mark.parametrize("monitored", [False, True])
def test_a_graph_that_waits_is_traced_and_trains_the_same(monitored: bool, tmp_path: Path) -> None:
    expected = train(rows, steps=30, monitored=str(tmp_path / "plain") if monitored else "")
    with watched("tensorflow", "session") as log:
        assert (
            train(rows, steps=30, monitored=str(tmp_path / "watched") if monitored else "")
            == expected
        )
    (loop,) = (loop for loop in loops(log, "session") if "Mean" in loop.name)
    assert (len(loop.steps), loop.waits) == (30, "modelled")
    assert all(0.0 <= step.wait_s <= step.end_s - step.begin_s for step in loop.steps)


def test_who_asks_for_times_himself_gets_them() -> None:
    tf = pytest.importorskip("tensorflow")
    tf1 = tf.compat.v1
    with watched("tensorflow", "session") as log, tf.Graph().as_default():
        batch = tf1.data.make_one_shot_iterator(tf1.data.Dataset.range(100)).get_next()
        with tf1.Session() as session:
            for _ in range(8):
                metadata = tf1.RunMetadata()
                options = tf1.RunOptions(trace_level=tf1.RunOptions.SOFTWARE_TRACE)
                session.run(batch, options=options, run_metadata=metadata)
                assert metadata.step_stats.dev_stats
    (loop,) = loops(log, "session")
    assert (len(loop.steps), loop.waits) == (8, "hidden")


def test_few_runs_are_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones, and then hardly any; less if their traces take long to read."""

    def traced_with(reading_s: float) -> list[int]:
        now = [0.0]

        def read(stats: Any, names: Any) -> float:
            now[0] += reading_s
            return 0.0

        monkeypatch.setattr(graph_waits.time, "perf_counter", lambda: now[0])
        monkeypatch.setattr(graph_waits, "waited_s", read)
        waits = graph_waits.GraphWaits({"next"})
        found = []
        for run in range(1, 1001):
            if waits.is_due(now[0]):
                waits.wait_s(SimpleNamespace(step_stats=None), 2.0)
                found.append(run)
            now[0] += 2.0
        return found

    assert traced_with(0.0) == [2, 3, 4, 8, 16, 32, 64, 128, 256, 512, 768]
    assert traced_with(1.0) == [2, 3, 4, 256, 512, 768]
