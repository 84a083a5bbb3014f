"""A session fed by worker processes: their deaths, and Ctrl-C, reach the waiting run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner
from fastfeed.errors import ProducerDied
from tests.helpers.dying import LONG_S, numbered, workers
from tests.helpers.scripts import Start

tf = pytest.importorskip("tensorflow")
from tests.helpers.graphs import (  # noqa: E402
    Inside,
    Run,
    drained,
    session,
)


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def test_a_death_while_a_run_waits() -> None:
    def stream() -> Iterator[Any]:
        yield np.full(4, os.getpid())
        time.sleep(LONG_S)

    with session(FeedRunner(stream, processes=1, shuffle=False, epochs=1)) as (sess, inputs):
        pid = int(sess.run(inputs)[0])
        run = Run(sess, inputs, Inside())
        os.kill(pid, signal.SIGKILL)
        error = run.ended_with()
    assert isinstance(error, ProducerDied)
    assert error.signal == signal.SIGKILL


def test_a_restart_is_not_noticed() -> None:
    runner = FeedRunner(
        numbered(4000, 4), processes=2, shuffle=False, on_worker_death="restart", epochs=1
    )
    found = []
    with session(runner) as (sess, inputs):
        found.append(sess.run(inputs)[0])
        workers(2)[0].kill()
        found += [ids for ids, _ in drained(sess, inputs)]
    assert sorted(np.concatenate(found).tolist()) == list(range(4000))


@pytest.mark.slow
def test_ctrl_c_during_a_run(script: Start) -> None:
    running = script(
        """
        import tensorflow as tf
        tf1 = tf.compat.v1
        def slow(worker):
            yield np.zeros(4)
            time.sleep(100)
        with tf.Graph().as_default():
            runner = FeedRunner(slow, processes=2, shuffle=False)
            inputs = runner.get_inputs()
            with tf1.Session() as sess:
                runner.start(sess)
                sess.run(inputs)
                sess.run(inputs)
                say_tree(3)
                sess.run(inputs)
        """
    )
    running.line("tree")
    running.signal_group(signal.SIGINT)
    ended = running.ended()
    assert ended.code in (1, -signal.SIGINT)
    assert "KeyboardInterrupt" in ended.err
