"""Every abnormal end of the feed of a session: the waiting run raises the error, and nothing
hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from fastfeed import (
    FeedRunner,
    FeedStopped,
    FeedTimeout,
    ProducerError,
    Shuffle,
    SpecError,
    StateError,
)
from tests.helpers.feeds import (
    LONG_S,
    Blocked,
    Broken,
    broken_after,
    chunks,
    copies,
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

SMALL = Shuffle(capacity=8, min_after_dequeue=4)
pytestmark = pytest.mark.usefixtures("graph")
either_queue = pytest.mark.parametrize("shuffle", [False, SMALL])


def failing(blocked: Blocked) -> Callable[[], Iterator[Any]]:
    """Return a source that yields the items of `blocked`, and raises when it is released."""

    def stream() -> Iterator[Any]:
        yield from blocked()
        raise Broken("the disk is gone")

    return stream


def assert_it_is_the_producers(error: BaseException | None) -> None:
    assert isinstance(error, ProducerError)
    assert isinstance(error.__cause__, Broken)
    assert "Broken: the disk is gone" in str(error)
    assert "in stream\n" in str(error), "the original traceback is part of the text"


def test_before_the_first_batch() -> None:
    with pytest.raises(ProducerError) as caught:
        FeedRunner(broken_after(0), epochs=1).get_inputs()
    assert_it_is_the_producers(caught.value)


@either_queue
def test_while_a_run_waits(shuffle: Any) -> None:
    with (
        Blocked(chunks(4, 4)) as blocked,
        session(FeedRunner(failing(blocked), shuffle=shuffle, epochs=1)) as (sess, inputs),
    ):
        if not shuffle:
            assert ids_of([sess.run(inputs)]) == [0, 1, 2, 3]
        run = Run(sess, inputs, Inside())
        blocked.let_go.set()
        assert_it_is_the_producers(run.ended_with())
        for _ in range(2):
            with pytest.raises(ProducerError) as caught:
                sess.run(inputs)
            assert_it_is_the_producers(caught.value)


@either_queue
@pytest.mark.parametrize("threads", [1, 3])
def test_after_many_batches(shuffle: Any, threads: int) -> None:
    """The error is never OutOfRangeError, which a training loop takes for the regular end."""
    source = copies(broken_after(10))
    options = {"threads": threads, "shuffle": shuffle}
    with (
        session(FeedRunner(source, **options)) as (sess, inputs),
        pytest.raises(ProducerError) as caught,
    ):
        drained(sess, inputs)
    assert_it_is_the_producers(caught.value)


def test_a_failure_reaches_every_run_that_waits() -> None:
    with (
        Blocked(chunks(4, 4)) as blocked,
        session(FeedRunner(failing(blocked), shuffle=False, epochs=1)) as (sess, inputs),
    ):
        sess.run(inputs)
        inside = [Inside() for _ in range(3)]
        runs = [Run(sess, inputs, i) for i in inside]
        blocked.let_go.set()
        for run in runs:
            assert_it_is_the_producers(run.ended_with())


def test_a_callable_made_by_the_session_is_met_too() -> None:
    with (
        Blocked(chunks(4, 4)) as blocked,
        session(FeedRunner(failing(blocked), shuffle=False, epochs=1)) as (sess, inputs),
    ):
        step = sess.make_callable(inputs)
        assert ids_of([step()]) == [0, 1, 2, 3]
        blocked.let_go.set()
        with pytest.raises(ProducerError):
            step()


def test_a_batch_that_does_not_fit_the_others() -> None:
    batches = [np.zeros((4, 3), "f4"), np.zeros((4, 2), "f4")]
    with (
        session(FeedRunner(iter(batches), shuffle=False, epochs=1)) as (sess, inputs),
        pytest.raises(SpecError, match="batch 1"),
    ):
        drained(sess, inputs)


def test_a_stall_is_an_error_that_shows_the_producer() -> None:
    blocked = Blocked(chunks(4, 4))
    runner = FeedRunner(blocked, shuffle=False, stall_timeout_s=0.1, epochs=1)
    with session(runner) as (sess, inputs), blocked:
        assert blocked.reached.wait(LONG_S)
        with pytest.raises(FeedTimeout, match=r"let_go\.wait"):
            drained(sess, inputs)


def test_a_session_that_does_not_ask_does_not_stall() -> None:
    """During a long evaluation between two steps the queue is full, and no run waits."""
    pulled, go_on = threading.Semaphore(0), threading.Event()

    def stream() -> Iterator[Any]:
        yield from chunks(40, 4)
        pulled.release()
        go_on.wait(LONG_S)
        yield from chunks(40, 4)

    with session(FeedRunner(stream, shuffle=False, stall_timeout_s=0.5, epochs=1)) as (
        sess,
        inputs,
    ):
        sess.run(inputs)
        assert pulled.acquire(timeout=LONG_S)
        threading.Event().wait(1.0)  # twice the limit; that nothing happens in it is what is tested
        go_on.set()
        assert len(drained(sess, inputs)) == 19


@either_queue
def test_stop_while_a_run_waits(shuffle: Any) -> None:
    with Blocked(chunks(4, 4)) as blocked:
        runner = FeedRunner(blocked, shuffle=shuffle, epochs=1)
        with session(runner) as (sess, inputs):
            if not shuffle:
                sess.run(inputs)
            run = Run(sess, inputs, Inside())
            stopper = threading.Thread(target=runner.stop)
            stopper.start()
            assert isinstance(run.ended_with(), FeedStopped)
            blocked.let_go.set()
            stopper.join()


@either_queue
@pytest.mark.parametrize("steps", [0, 3])
def test_stop_while_the_queue_is_full(shuffle: Any, steps: int) -> None:
    """The source produces all batches for which there is room, until all wait for room.

    The queue, the buffer (two by `memory`), a pool of two and both threads have room.
    """
    pulled = threading.Semaphore(0)

    def endless() -> Iterator[Any]:
        while True:
            pulled.release()
            yield from chunks(1000, 1000)

    shuffle = shuffle and Shuffle(capacity=2000, min_after_dequeue=1000)
    runner = FeedRunner(endless, shuffle=shuffle, memory=2000 * 16, epochs=1)
    with session(runner) as (sess, inputs):
        for _ in range(steps):
            sess.run(inputs)
        for _ in range(steps + 2 + 1 + 2 + 1 + bool(shuffle)):
            assert pulled.acquire(timeout=LONG_S)
        runner.stop()
        assert not [t for t in threading.enumerate() if t.name.startswith("fastfeed")]
        with pytest.raises(FeedStopped):
            sess.run(inputs)


@either_queue
def test_the_session_is_closed_first(shuffle: Any) -> None:
    """The test calls no stop(): the fixture of every test checks that all threads end."""
    runner = FeedRunner(shared_out(10**6, 4), shuffle=shuffle, epochs=1)
    inputs = runner.get_inputs()
    with tf1.Session() as sess:
        runner.start(sess)
        sess.run(inputs)
    with pytest.raises(RuntimeError, match="closed"):
        sess.run(inputs)


def test_the_session_is_closed_while_a_run_waits() -> None:
    with Blocked(chunks(4, 4)) as blocked:
        runner = FeedRunner(blocked, shuffle=False, epochs=1)
        inputs, inside = runner.get_inputs(), Inside()
        sess = tf1.Session()
        runner.start(sess)
        sess.run(inputs)
        run = Run(sess, inputs, inside)
        closer = threading.Thread(target=sess.close)
        closer.start()
        assert isinstance(run.ended_with(), (tf.errors.CancelledError, FeedStopped))
        closer.join(LONG_S)
        blocked.let_go.set()


def test_the_session_is_closed_after_the_last_batch() -> None:
    runner = FeedRunner(shared_out(8, 4), shuffle=False, epochs=1)
    inputs = runner.get_inputs()
    with tf1.Session() as sess:
        runner.start(sess)
        assert len(drained(sess, inputs)) == 2


def test_a_run_after_all_producers_have_ended() -> None:
    with session(FeedRunner(shared_out(8, 4), threads=2, shuffle=False, epochs=1)) as (
        sess,
        inputs,
    ):
        assert len(drained(sess, inputs)) == 2
        run = Run(sess, inputs, Inside())
        assert isinstance(run.ended_with(), tf.errors.OutOfRangeError)


NOT_STARTED = r"start\(sess\) was not called in this session.*make another FeedRunner"


@pytest.mark.parametrize("make", [tf1.Session, tf1.train.MonitoredSession])
def test_a_run_before_start_is_an_error_and_not_a_wait(make: Any) -> None:
    with FeedRunner(shared_out(8, 4), epochs=1) as runner:
        inputs = runner.get_inputs()
        with make() as sess:
            for _ in range(2):
                with pytest.raises(StateError, match=NOT_STARTED):
                    sess.run(inputs)
        with tf1.Session() as sess:
            runner.start(sess)
            assert len(drained(sess, inputs)) == 2, "nothing was lost"


def test_a_second_session_is_refused_and_takes_nothing_from_the_first() -> None:
    runner = FeedRunner(shared_out(12, 4), shuffle=False, epochs=1)
    with session(runner) as (sess, inputs), tf1.Session() as other:
        found = [sess.run(inputs)]
        with pytest.raises(StateError, match=NOT_STARTED):
            other.run(inputs)
        for again in (other, sess):
            with pytest.raises(StateError, match="make a second FeedRunner"):
                runner.start(again)
        assert ids_of([*found, *drained(sess, inputs)]) == list(range(12))
        sess.close()
        with pytest.raises(StateError, match=NOT_STARTED):
            other.run(inputs)
        with FeedRunner(shared_out(4, 4), epochs=1) as second:
            inputs = second.get_inputs()
            assert len(drained(second.start(other) and other, inputs)) == 1, "the way out"


def test_a_closed_session_cannot_be_started() -> None:
    with FeedRunner(shared_out(8, 4), epochs=1) as runner:
        runner.get_inputs()
        sess = tf1.Session()
        sess.close()
        with pytest.raises(RuntimeError, match="closed"):
            runner.start(sess)


def test_after_a_session_of_another_graph_the_right_one_may_follow() -> None:
    with FeedRunner(shared_out(8, 4), shuffle=False, epochs=1) as runner:
        inputs = runner.get_inputs()
        with (
            tf1.Session(graph=tf.Graph()) as other,
            pytest.raises(StateError, match="another graph"),
        ):
            runner.start(other)
        with tf1.Session() as sess:
            runner.start(sess)
            assert ids_of(drained(sess, inputs)) == list(range(8))


def test_other_runs_of_the_session_are_not_touched() -> None:
    """A failure of the feed is raised by runs that take from it; other runs raise their own
    errors."""
    with (
        Blocked(chunks(4, 4)) as blocked,
        session(FeedRunner(failing(blocked), shuffle=False, epochs=1)) as (sess, inputs),
    ):
        one, wrong = tf.constant(1), tf.debugging.Assert(False, ["mine"])
        own = tf1.FIFOQueue(1, tf.int32)
        close, take = own.close(), own.dequeue()
        blocked.let_go.set()
        with pytest.raises(ProducerError):
            drained(sess, inputs)
        assert sess.run(one) == 1
        with pytest.raises(tf.errors.InvalidArgumentError, match="mine"):
            sess.run(wrong)
        sess.run(close)
        with pytest.raises(tf.errors.OutOfRangeError):
            sess.run(take)
