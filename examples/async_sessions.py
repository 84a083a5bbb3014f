"""Asynchronous training with TensorFlow, for async_parallel.py: sessions of workers that share the
variables of a parameter server.

Every worker builds the graph for itself and runs its own session ("between-graph replication"), so
its FeedRunner lives in the process that trains. The ClusterCoordinator of TensorFlow 2 would send
datasets to the workers, and Python functions such as a FeedRunner cannot be sent.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from async_graph import reading, shared_model, updating
from fault_injection import die, pretend_work

from fastfeed import FeedRunner
from fastfeed.benchmark import digits


def jobs(addresses: list[str]) -> dict[str, list[str]]:
    return {"ps": addresses[:1], "worker": addresses[1:]}


def parameter_server(meeting: Any, args: argparse.Namespace) -> None:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import tensorflow as tf

    tf.distribute.Server(jobs(meeting.addresses), "ps", 0).join()


def worker(index: int, meeting: Any, args: argparse.Namespace) -> None:
    """Train until no batch of any epoch is left, and send (index, seconds, how many steps had
    which staleness)."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import tensorflow as tf

    tf1 = tf.compat.v1
    data = digits.load(args.data)
    images, labels = data.x_train[: args.records], data.y_train[: args.records]
    server = tf.distribute.Server(jobs(meeting.addresses), "worker", index)
    # this worker and the parameters: another worker that dies is no matter
    filters = ["/job:ps", f"/job:worker/task:{index}"]
    config = tf1.ConfigProto(device_filters=filters, intra_op_parallelism_threads=1)
    runner = FeedRunner(
        (images, labels, np.arange(len(labels))),
        batch_size=args.batch_size,
        shard=meeting.shards,
        epochs=args.epochs,
        shuffle=True,
        prefetch=2,
    )
    staleness: Counter[int] = Counter()
    with tf.Graph().as_default(), runner:
        with tf.device(filters[1]):
            x, y, numbers = runner.get_inputs()
        model = shared_model(len(labels), jobs(meeting.addresses), args.seed, index)
        read, gradients = reading(model, x, y)
        update, places = updating(model, args.learning_rate)
        meeting.ready.wait(args.limit_s)
        with tf1.Session(server.target, config=config) as session:
            runner.start(session)  # joins the job
            meeting.start.wait(args.limit_s)
            start = time.perf_counter()
            with suppress(tf.errors.OutOfRangeError):
                while True:
                    before, values, batch = session.run((read, gradients, numbers))
                    pretend_work(index, args)
                    after = session.run(update, dict(zip(places, [*values, batch], strict=True)))
                    staleness[int(after - before - 1)] += 1
                    if index == args.die and staleness.total() == 5:
                        die()
            seconds = time.perf_counter() - start
    meeting.results.send((index, seconds, staleness))


@contextmanager
def observer(
    meeting: Any, args: argparse.Namespace
) -> Iterator[Callable[[], tuple[list[int], float]]]:
    """Give the variables their first values, and yield a function that returns how often each
    record was applied, and the test accuracy."""
    import tensorflow as tf

    tf1, data = tf.compat.v1, digits.load(args.data)
    only = tf1.ConfigProto(device_filters=["/job:ps"])
    with tf.Graph().as_default():
        cluster = jobs(meeting.addresses)
        model = shared_model(len(data.y_train[: args.records]), cluster, args.seed)
        images = tf1.placeholder(tf.uint8, (None, 28, 28))
        classes = tf.argmax(model(images), axis=1)
        # the session waits for the parameter server
        with tf1.Session(f"grpc://{meeting.addresses[0]}", config=only) as session:
            session.run(tf1.global_variables_initializer())
            meeting.ready.set()

            def look() -> tuple[list[int], float]:
                applied, found = session.run((model.applied, classes), {images: data.x_test})
                return applied.tolist(), float((found == data.y_test).mean())

            yield look
