"""Sessions of tf.compat.v1 for the tests: drained to the end, or caught while they wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from tests.helpers.feeds import LONG_S

tf1 = tf.compat.v1


@contextmanager
def session(*runners: Any, **options: Any) -> Iterator[tuple[Any, ...]]:
    """(session, inputs of each runner), started and stopped afterwards."""
    inputs = [runner.get_inputs(**options) for runner in runners]
    with tf1.Session() as sess:
        try:
            for runner in runners:
                runner.start(sess)
            yield (sess, *inputs)
        finally:
            for runner in runners:
                runner.stop()


def drained(sess: Any, fetches: Any) -> list[Any]:
    """Everything that the session delivers until it says that there is no more."""
    found = []
    try:
        while True:
            found.append(sess.run(fetches))
    except tf.errors.OutOfRangeError:
        return found


class Inside:
    """An operation that reports when a session runs it: then `run` is inside TensorFlow."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.op = tf1.py_func(self._say, [], tf.int32)

    def _say(self) -> np.ndarray:
        self.reached.set()
        return np.array(0, np.int32)


class Run(threading.Thread):
    """A `sess.run` in a thread of its own, which is inside TensorFlow when this returns."""

    def __init__(self, sess: Any, fetches: Any, inside: Inside) -> None:
        super().__init__(name="a run of the test")
        self._call = lambda: sess.run([fetches, inside.op])
        self.error: BaseException | None = None
        self.start()
        assert inside.reached.wait(LONG_S)

    def run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self.error = error

    def ended_with(self) -> BaseException | None:
        """Return how it ended; fail if it did not."""
        self.join(LONG_S)
        assert not self.is_alive(), "the run hangs"
        return self.error
