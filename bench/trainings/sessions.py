"""The graph of MNIST in TensorFlow 1, and the wait for a queue inside of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.trainings.training import SEED


@contextmanager
def graph() -> Iterator[Any]:
    """Yield TensorFlow 1 inside a new graph."""
    import tensorflow as tf

    with tf.Graph().as_default():
        tf.compat.v1.set_random_seed(SEED)
        yield tf.compat.v1


def placeholders(tf1: Any) -> tuple[Any, Any]:
    """Return the placeholders of a batch."""
    images = tf1.placeholder(tf1.float32, (None, 28, 28))
    return images, tf1.placeholder(tf1.int64, (None,))


def train_ops(images: Any, labels: Any) -> tuple[Any, Any]:
    """Return the operation that trains on a batch, and its loss."""
    from fastfeed.benchmark.cnn_session import train_step

    step = train_step(images, labels, learning_rate=3e-4)
    return step.train_op, step.loss


def timed(tf1: Any, waiting: Any, records: int) -> tuple[Any, Any]:
    """Return a batch of a queue, and the seconds that the step has waited for it."""
    before = tf1.timestamp()
    with tf1.control_dependencies([before]):
        batch = waiting.dequeue_many(records)
    with tf1.control_dependencies(batch):
        return batch, tf1.timestamp() - before
