"""A graph of TensorFlow 1 whose step reads a queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1
ROWS = 4


class Graph:
    """A queue, whose elements a step adds up; `inside` is called in the step."""

    def __init__(
        self, inside: Callable[[], None] = lambda: None, *, capacity: int = 100, minimum: int = 0
    ) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.value = tf1.placeholder(tf.float32, (None,), name="value")
            self.queue = tf1.FIFOQueue(capacity, [tf.float32], shapes=[()], name="queue")
            if minimum:
                self.queue = tf1.RandomShuffleQueue(
                    capacity, minimum, [tf.float32], shapes=[()], seed=1
                )
            self.put = self.queue.enqueue_many([self.value])
            self.close = self.queue.close()
            batch = self.queue.dequeue_many(ROWS)

            def called(value: Any) -> Any:
                inside()
                return value

            self.step = tf.reduce_sum(tf.numpy_function(called, [batch], tf.float32))
        self.session = tf1.Session(graph=self.graph)

    def fill(self, *values: float) -> None:
        self.session.run(self.put, {self.value: np.array(values, np.float32)})
