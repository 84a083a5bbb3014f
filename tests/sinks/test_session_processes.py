"""A session fed by worker processes: the same promises as with threads, and no worker imports
TensorFlow."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, FeedStopped, ProducerError, Reorder, Shuffle, Worker
from tests.helpers.dying import until
from tests.helpers.feeds import (
    LONG_S,
    Broken,
    Readable,
    chunks,
    ids_of,
    shared_out,
)
from tests.helpers.mixes import gated, pair

tf = pytest.importorskip("tensorflow")
from tests.helpers.graphs import (  # noqa: E402
    Inside,
    Run,
    drained,
    session,
    tf1,
)

SMALL = Shuffle(capacity=20, min_after_dequeue=8)
pytestmark = pytest.mark.usefixtures("graph")
either_queue = pytest.mark.parametrize("shuffle", [False, SMALL])


class Gate:
    """A FIFO, and a thread that opens it, which blocks until there is a reader."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "gate")
        os.mkfifo(self.path)

    def open(self) -> None:
        with open(self.path, "w"):
            pass


# a lambda: workers import the module of a function, and this one imports TensorFlow
CHUNK: Any = lambda start: next(chunks(start + 5, 5, offset=start // 5))  # noqa: E731


@either_queue
@pytest.mark.parametrize(
    ("source", "needed"),
    [
        (shared_out(50, 5), {}),
        (Readable(lambda: range(0, 50, 5)), {"transform": CHUNK}),
        (range(50), {"transform": pair, "batch_size": 5}),
    ],
    ids=["callable", "transformed", "indexable"],
)
def test_every_record_once(source: Any, needed: dict[str, Any], shuffle: Any) -> None:
    runner = FeedRunner(source, processes=2, threads=2, epochs=2, shuffle=shuffle, **needed)
    with session(runner) as (sess, inputs):
        every = ids_of(drained(sess, inputs))
        now = runner.snapshot()
    assert sorted(every) == sorted([*range(50)] * 2)
    assert now.produced.records == 100
    assert now.slots.ready == 0
    if needed and not shuffle:
        assert every == [*range(50)] * 2


@either_queue
def test_every_record_once_in_a_window(shuffle: Any) -> None:
    options: dict[str, Any] = {"batch_size": 5, "epochs": 2, "order": Reorder(2)}
    runner = FeedRunner(range(50), processes=2, shuffle=shuffle, transform=pair, **options)
    with session(runner) as (sess, inputs):
        assert sorted(ids_of(drained(sess, inputs))) == sorted([*range(50)] * 2)


def test_it_trains_and_the_slots_come_back() -> None:
    """The graph's step uses more batches than there are slots; x is a third of y."""

    def stream(worker: Worker) -> Iterator[Any]:
        for _ in range(60):
            x = worker.empty(np.empty((16, 1), np.float32))
            x[:] = worker.rng.random((16, 1))
            yield x, 3 * x

    runner = FeedRunner(
        stream, processes=2, shuffle=SMALL, batch_size=4, memory=2 * 4 * 4096, epochs=1
    )
    x, y = runner.get_inputs()
    weight = tf1.get_variable("weight", (1, 1), initializer=tf1.zeros_initializer())
    loss = tf.reduce_mean((tf.matmul(x, weight) - y) ** 2)
    step = tf1.train.GradientDescentOptimizer(0.5).minimize(loss)
    with tf1.Session() as sess:
        sess.run(tf1.global_variables_initializer())
        with runner.start(sess):
            losses = drained(sess, [loss, step])
            assert len(losses) == 2 * 60 * 4
            assert abs(sess.run(weight)[0, 0] - 3) < 0.1
        slots = runner.snapshot().slots
    assert slots.all <= 2 * 4
    assert slots.filling + slots.ready == 0


def test_a_batch_that_a_step_works_on_keeps_its_slot() -> None:
    """Batches enter the graph without a copy, and a slot is reused after the last tensor on it."""

    def numbered() -> Iterator[Any]:
        for number in range(200):
            yield np.full((8, 1000), number, np.float32)

    runner = FeedRunner(numbered, processes=1, shuffle=False, memory=16 * 36864, epochs=1)
    with session(runner) as (sess, x):
        reached, go_on = threading.Event(), threading.Event()

        def wait() -> np.ndarray:
            reached.set()
            return np.array(go_on.wait(LONG_S))

        with (
            tf.control_dependencies([x]),
            tf.control_dependencies([tf1.py_func(wait, [], tf.bool)]),
        ):
            held = tf.reduce_min(x), tf.reduce_max(x)
        both, found = (tf.reduce_min(x), tf.reduce_max(x)), []
        slow = threading.Thread(target=lambda: found.append(sess.run(held)))
        slow.start()
        assert reached.wait(LONG_S)
        for number in range(1, 150):
            assert sess.run(both) == (number, number)
        until(
            lambda: runner.snapshot().slots.lent > 4,
            "a full queue: its four, and that of the step that waits",
        )
        assert runner.snapshot().consumed.copied == 0
        go_on.set()
        slow.join()
        assert found == [(0, 0)]
        drained(sess, both)
        gc.collect()
    until(lambda: runner.snapshot().slots.lent == 0, "the return of every slot")


@pytest.mark.parametrize("dtypes", ["float32", tf.float32, (tf.float32, tf.int32)])
def test_no_worker_imports_tensorflow(dtypes: Any) -> None:
    """A dtype of TensorFlow among the options is converted before it is sent."""

    def stream(worker: Worker) -> Iterator[Any]:
        heavy = {name.partition(".")[0] for name in sys.modules} & {
            "tensorflow",
            "keras",
            "pytest",
            "hypothesis",
        }
        yield np.full((2, 1), float(len(heavy))), np.full(2, worker.index)

    runner = FeedRunner(stream, processes=2, shuffle=False, dtypes=dtypes, epochs=1)
    with session(runner) as (sess, inputs):
        batches = drained(sess, inputs)
    assert sorted(int(index[0]) for _, index in batches) == [0, 1]
    assert all(heavy.dtype == np.float32 and not heavy.any() for heavy, _ in batches)


@either_queue
def test_a_failure_reaches_a_run_that_waits(shuffle: Any, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    runner = FeedRunner(
        gated(gate.path, Broken("the disk is gone")), processes=2, shuffle=shuffle, epochs=1
    )
    with session(runner) as (sess, inputs):
        if not shuffle:
            assert ids_of([sess.run(inputs)]) == list(range(8))
        run = Run(sess, inputs, Inside())
        gate.open()
        error = run.ended_with()
        assert isinstance(error, ProducerError)
        assert type(error.__cause__) is Broken
        assert "raise error  # the user's own line" in str(error)
        with pytest.raises(ProducerError):
            sess.run(inputs)


@either_queue
def test_stop_while_a_run_waits(shuffle: Any, tmp_path: Path) -> None:
    """The producers are in the user's code, which does not return: their processes are killed."""
    runner = FeedRunner(gated(Gate(tmp_path).path), processes=2, shuffle=shuffle, epochs=1)
    with session(runner) as (sess, inputs):
        if not shuffle:
            sess.run(inputs)
        run = Run(sess, inputs, Inside())
        stopper = threading.Thread(target=runner.stop)
        stopper.start()
        assert isinstance(run.ended_with(), FeedStopped)
        stopper.join(LONG_S)
        assert not stopper.is_alive()


def test_two_feeds_in_one_session() -> None:
    train = FeedRunner(shared_out(40, 4), processes=1, shuffle=SMALL, epochs=1)
    valid = FeedRunner(
        Readable(lambda: chunks(20, 5)), processes=1, threads=2, shuffle=False, epochs=1
    )
    with session(train, valid) as (sess, x, v):
        assert ids_of(drained(sess, v)) == list(range(20))
        assert sorted(ids_of(drained(sess, x))) == list(range(40))


def test_records_are_padded_and_bytes_arrive() -> None:
    words = [{"ids": np.arange(n, dtype=np.int32), "text": b"w" * n} for n in (1, 3, 2)]
    runner = FeedRunner(words, processes=1, batch_size=2, pad=True, shuffle=False, epochs=1)
    with session(runner) as (sess, inputs):
        first, last = drained(sess, inputs)
    assert first["ids"].tolist() == [[0, 0, 0], [0, 1, 2]]
    assert last["ids"][0, :2].tolist() == [0, 1]
    assert [*first["text"], *last["text"]] == [b"w", b"www", b"ww"]
