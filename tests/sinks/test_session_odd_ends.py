"""Rare ends and records, each of which once lost data, crashed or hung."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, FeedStopped, ProducerError

tf = pytest.importorskip("tensorflow")
from tests.helpers.graphs import (  # noqa: E402
    Inside,
    drained,
    session,
    tf1,
)

pytestmark = pytest.mark.usefixtures("graph")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def clips() -> Iterator[Any]:
    for i in range(11):
        yield np.full(1 + i * 5 % 7, i, np.int32)


def test_a_number_that_pads_is_the_only_one_that_does_also_over_epochs() -> None:
    runner = FeedRunner(clips, records=True, batch_size=4, pad=-1, epochs=2, shuffle=False)
    with session(runner) as (sess, x):
        rows = [row for batch in drained(sess, x) for row in batch]
    assert len(rows) == 22
    for i, row in enumerate(rows):
        length = 1 + i % 11 * 5 % 7
        assert row[:length].tolist() == [i % 11] * length
        assert set(row[length:].tolist()) <= {-1}


def test_records_without_elements_pass() -> None:
    def mentions() -> Iterator[Any]:
        for count in (2, 0, 1, 0):
            yield np.full((3, count), count, np.float32), np.int32(count)

    runner = FeedRunner(mentions, records=True, batch_size=1, pad=True, epochs=1)
    with session(runner, shapes=((3, None), ())) as (sess, inputs):
        assert [x.shape for x, _ in drained(sess, inputs)] == [
            (1, 3, 2),
            (1, 3, 0),
            (1, 3, 1),
            (1, 3, 0),
        ]


def test_a_failure_reaches_a_monitored_step_function() -> None:
    def stream() -> Iterator[Any]:
        yield (np.zeros((4, 1)),)
        raise ValueError("boom")

    runner = FeedRunner(stream, shuffle=False, dtypes="float32", epochs=1)
    (x,) = runner.get_inputs()
    with (
        runner,
        pytest.raises(ProducerError, match="boom"),
        tf1.train.MonitoredTrainingSession() as sess,
    ):
        runner.start(sess)
        for _ in range(2):
            sess.run_step_fn(lambda step_context: step_context.session.run(x))


@pytest.mark.parametrize("in_session", [False, True])
def test_an_error_that_cannot_be_printed_is_still_an_error(in_session: bool) -> None:
    def stream() -> Iterator[Any]:
        yield (np.zeros((4, 1), np.float32),)
        raise Unprintable

    runner = FeedRunner(stream, shuffle=False, epochs=1)
    with pytest.raises(ProducerError, match="Unprintable"):
        if in_session:
            with session(runner) as (sess, inputs):
                drained(sess, inputs)
        else:
            list(runner)


@pytest.fixture
def alarm() -> Iterator[Any]:
    """Send this process a signal once the stream is stuck, while the main thread waits."""
    stuck, release = threading.Event(), threading.Event()

    def stream() -> Iterator[Any]:
        yield (np.zeros((4, 1), np.float32),)
        stuck.set()
        release.wait(60)

    def send(number: int, when: threading.Event = stuck) -> Any:
        sender = threading.Thread(target=lambda: when.wait(60) and os.kill(os.getpid(), number))
        sender.start()
        return sender

    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGUSR1)}
    yield stream, send, release
    release.set()
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_users_handler_runs_while_a_run_waits(alarm: Any) -> None:
    stream, send, release = alarm

    runner = FeedRunner(stream, shuffle=False, epochs=1)

    def handle(number: int, frame: Any) -> None:
        release.set()
        runner.stop()

    signal.signal(signal.SIGTERM, handle)
    with session(runner) as (sess, inputs):
        sess.run(inputs)
        inside = Inside()
        sender = send(signal.SIGTERM, inside.reached)
        with pytest.raises(FeedStopped):
            sess.run([inputs, inside.op])
        sender.join()


def test_stop_in_a_signal_handler_ends_the_loop(alarm: Any) -> None:
    stream, send, release = alarm
    runner = FeedRunner(stream, epochs=1)

    def handle(number: int, frame: Any) -> None:
        release.set()
        runner.stop()

    signal.signal(signal.SIGUSR1, handle)
    batches = iter(runner)
    next(batches)
    sender = send(signal.SIGUSR1)
    with pytest.raises(FeedStopped):
        next(batches)
    sender.join()
