"""Training loops of other libraries: monitored sessions, coordinators, two feeds in one session,
Ctrl-C."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fastfeed import FeedRunner, FeedStopped, ProducerError, Shuffle
from tests.helpers.feeds import (
    Blocked,
    broken_after,
    chunks,
    ids_of,
    shared_out,
)

tf = pytest.importorskip("tensorflow")
from tests.helpers.graphs import (  # noqa: E402
    Inside,
    Run,
    drained,
    session,
    tf1,
)

ROOT = Path(__file__).parents[2]
SMALL = Shuffle(capacity=8, min_after_dequeue=4)
pytestmark = pytest.mark.usefixtures("graph")


@pytest.fixture
def step(graph: Any) -> Any:
    """Return the operations that a monitored session requires in its graph."""
    return tf1.train.get_or_create_global_step()


def monitored(runner: FeedRunner, **options: Any) -> tuple[list[Any], BaseException | None]:
    """Return the batches that a monitored loop gets until it should stop, and the error that ends
    it."""
    inputs, got = runner.get_inputs(), []
    try:
        with tf1.train.MonitoredTrainingSession(**options) as sess, runner:
            runner.start(sess)
            while not sess.should_stop():
                got.append(sess.run(inputs))
    except BaseException as error:
        return got, error
    finally:
        tf1.summary.FileWriterCache.clear()  # TensorFlow's own file and thread
    return got, None


@pytest.mark.usefixtures("step")
@pytest.mark.parametrize("shuffle", [False, SMALL])
def test_a_monitored_session_ends_regularly(shuffle: Any, tmp_path: Path) -> None:
    runner = FeedRunner(shared_out(42, 4), shuffle=shuffle, threads=2, epochs=1)
    got, error = monitored(
        runner, checkpoint_dir=str(tmp_path), save_summaries_steps=None, save_summaries_secs=None
    )
    assert error is None, "OutOfRangeError is a regular end, which the session swallows"
    assert sorted(ids_of(got)) == list(range(42))


@pytest.mark.usefixtures("step")
def test_a_failure_leaves_a_monitored_session_as_what_it_is() -> None:
    got, error = monitored(FeedRunner(broken_after(5), shuffle=False, epochs=1))
    assert isinstance(error, ProducerError)
    assert len(got) <= 5


@pytest.mark.usefixtures("step")
def test_hooks_of_a_monitored_session_see_only_the_training_steps() -> None:
    class Count(tf1.train.SessionRunHook):
        runs = 0

        def before_run(self, context: Any) -> None:
            self.runs += 1

    hook = Count()
    got, error = monitored(FeedRunner(shared_out(40, 4), shuffle=False, epochs=1), hooks=[hook])
    assert error is None
    assert hook.runs == len(got) + 1, "each step, and the one that met the end"


def test_a_coordinator_that_asks_to_stop_ends_the_feed() -> None:
    coord = tf1.train.Coordinator()
    with Blocked(chunks(8, 4)) as blocked:
        runner = FeedRunner(blocked, shuffle=False, epochs=1)
        inputs, inside = runner.get_inputs(), Inside()
        with tf1.Session() as sess:
            runner.start(sess, coord)
            sess.run(inputs)
            sess.run(inputs)
            run = Run(sess, inputs, inside)
            coord.request_stop()
            assert isinstance(run.ended_with(), FeedStopped)
            blocked.let_go.set()
            coord.join()


def test_a_coordinator_hears_of_a_failure() -> None:
    coord = tf1.train.Coordinator()
    runner = FeedRunner(broken_after(2), shuffle=False, epochs=1)
    inputs = runner.get_inputs()
    with tf1.Session() as sess:
        runner.start(sess, coord)
        with pytest.raises(ProducerError):
            drained(sess, inputs)
        assert coord.should_stop()
        with pytest.raises(ProducerError):
            coord.join()


def test_a_coordinator_of_a_finite_feed() -> None:
    coord = tf1.train.Coordinator()
    runner = FeedRunner(shared_out(40, 4), shuffle=False, epochs=1)
    inputs = runner.get_inputs()
    with tf1.Session() as sess:
        runner.start(sess, coord)
        try:
            while not coord.should_stop():
                sess.run(inputs)
        except tf.errors.OutOfRangeError:
            coord.request_stop()
        coord.join()


def two_feeds() -> tuple[FeedRunner, FeedRunner]:
    return FeedRunner(shared_out(40, 4), shuffle=SMALL, epochs=1), FeedRunner(
        shared_out(20, 5), shuffle=False, epochs=1
    )


def test_two_feeds_in_one_session() -> None:
    with session(*two_feeds()) as (sess, train, valid):
        mixed = [sess.run((train, valid)) for _ in range(4)]
        with pytest.raises(tf.errors.OutOfRangeError):
            sess.run(valid)
        rest = drained(sess, train)
    assert sorted(ids_of([t for t, _ in mixed] + rest)) == list(range(40))
    assert ids_of([v for _, v in mixed]) == list(range(20))


def test_each_of_two_feeds_counts_its_own_steps() -> None:
    train, valid = two_feeds()
    with session(train, valid) as (sess, x, v):
        drained(sess, x)
        drained(sess, v)
        assert train.snapshot().consumed.batches == 9
        assert valid.snapshot().consumed.batches == 3


def test_the_failure_of_one_feed_is_not_the_others() -> None:
    train, valid = (
        FeedRunner(shared_out(400, 4), shuffle=SMALL, epochs=1),
        FeedRunner(broken_after(1), shuffle=False, epochs=1),
    )
    with session(train, valid) as (sess, x, v):
        with pytest.raises(ProducerError):
            drained(sess, v)
        assert sorted(ids_of(drained(sess, x))) == list(range(400))


def test_one_feed_stops_and_the_other_goes_on() -> None:
    train, valid = two_feeds()
    with session(train, valid) as (sess, x, v):
        valid.stop()
        with pytest.raises(FeedStopped):
            sess.run(v)
        assert sorted(ids_of(drained(sess, x))) == list(range(40))


def test_one_after_the_other_in_one_session() -> None:
    first, second = two_feeds()
    x, v = first.get_inputs(), second.get_inputs()
    with tf1.Session() as sess:
        for runner, inputs, total in ((first, x, 40), (second, v, 20)):
            with runner:
                runner.start(sess)
                assert sorted(ids_of(drained(sess, inputs))) == list(range(total))


CTRL_C = """
import os, signal, threading, warnings
warnings.simplefilter("ignore")
import numpy as np, tensorflow as tf
from fastfeed import FeedRunner

signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore SIGINT
tf1 = tf.compat.v1

def stalls():
    yield np.arange(4)
    threading.Event().wait()

def inside():
    # in TensorFlow's thread, while the main thread is inside sess.run
    os.kill(os.getpid(), signal.SIGINT)
    return np.array(0, np.int32)

def after_a_batch(sess, inputs):
    sess.run(inputs)

def before_any_batch(sess, inputs):
    pass  # a shuffle that is never full enough

def beside_a_feed_that_was_stopped(sess, inputs):
    other = FeedRunner(stalls)
    other.get_inputs()
    other.start(sess)
    sess.run(inputs)
    other.stop()

unshuffled = {"shuffle": False}
cases = [
    (after_a_batch, unshuffled),
    (before_any_batch, {}),
    (beside_a_feed_that_was_stopped, unshuffled),
]
for case, options in cases:
    with tf.Graph().as_default(), tf1.Session() as sess:
        runner = FeedRunner(stalls, **options)
        inputs, signal_op = runner.get_inputs(), tf1.py_func(inside, [], tf.int32)
        runner.start(sess)
        case(sess, inputs)
        try:
            sess.run([inputs, signal_op])
        except KeyboardInterrupt:
            print("interrupted", case.__name__, flush=True)
"""


@pytest.mark.slow
def test_ctrl_c_while_a_run_waits() -> None:
    """Run three processes whose main thread waits in TensorFlow for a batch that never comes."""
    done = subprocess.run(
        [sys.executable, "-c", CTRL_C], capture_output=True, text=True, timeout=160, cwd=ROOT
    )
    cases = ("after_a_batch", "before_any_batch", "beside_a_feed_that_was_stopped")
    assert done.stdout.splitlines() == [f"interrupted {case}" for case in cases], done.stderr[
        -2000:
    ]
    assert done.returncode == 0
