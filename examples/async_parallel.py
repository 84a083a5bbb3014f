"""Asynchronous data parallelism: parameters on a server, workers at their own pace.

    python examples/async_parallel.py --workers 3
    python examples/async_parallel.py --workers 3 --slow 4      # worker 1 takes 4 times as long
    python examples/async_parallel.py --workers 3 --die 1       # worker 1 is killed on the way
    python examples/async_parallel.py --sweep 1,2,4,8 --plot async.png
    python examples/async_parallel.py --framework torch         # or jax, see async_arrays.py

Each worker reads the parameters, computes a gradient, and applies it without waiting for anybody.
Meanwhile others have changed the parameters: the updates in between are the staleness, the price of
the speed. A ShardServer hands out the batches as the workers ask, so each record is trained on once
an epoch whoever is slow, and the batches of a worker that died go to another. The parameter server
counts how often each record was applied.

With TensorFlow, every worker builds the graph for itself and runs its own session ("between-graph
replication"), so its FeedRunner lives in the process that trains. The ClusterCoordinator of
TensorFlow 2 would send datasets to the workers, and Python functions such as a FeedRunner cannot be
sent.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any, NamedTuple

import async_arrays
import numpy as np
from local_cluster import (
    SPAWN,
    LocalCluster,
    RankDied,
    check_rank,
    free_addresses,
    parsed,
)

from fastfeed import FeedRunner
from fastfeed.benchmark import digits
from fastfeed.ranks import ShardServer

SIZES = async_arrays.SIZES


class Model(NamedTuple):
    """The variables on the parameter server."""

    layers: list[tuple[Any, Any]]
    version: Any  # updates so far
    applied: Any  # how often each record was

    def variables(self) -> list[Any]:
        return [variable for layer in self.layers for variable in layer]

    def __call__(self, images: Any) -> Any:
        import tensorflow as tf

        values = tf.reshape(tf.cast(images, tf.float32) / 255, (-1, SIZES[0]))
        *hidden, (weights, bias) = self.layers
        for w, b in hidden:
            values = tf.nn.relu(values @ w + b)
        return values @ weights + bias


def shared_model(records: int, cluster: dict[str, list[str]], seed: int, index: int = 0) -> Model:
    """Create the variables, or refer to those of the other workers, which have the same names."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type="worker", task_id=index, num_accelerators={}
    )
    strategy = tf1.distribute.experimental.ParameterServerStrategy(resolver)
    with strategy.scope():  # puts every variable on a parameter server
        layers = []
        for number, (rows, columns) in enumerate(pairwise(SIZES)):
            first = tf1.glorot_uniform_initializer(seed + number)
            weights = tf1.get_variable(f"w{number}", (rows, columns), initializer=first)
            bias = tf1.get_variable(f"b{number}", columns, initializer=tf1.zeros_initializer())
            layers.append((weights, bias))
        zeros = tf1.zeros_initializer()
        version = tf1.get_variable("version", (), tf.int64, zeros, trainable=False)
        applied = tf1.get_variable("applied", records, tf.int32, zeros, trainable=False)
    return Model(layers, version, applied)


def parameter_server(cluster: dict[str, list[str]]) -> None:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import tensorflow as tf

    tf.distribute.Server(cluster, "ps", 0).join()


class Meeting(NamedTuple):
    """What the workers get from the process that starts them."""

    cluster: dict[str, list[str]]
    shards: str  # address of the ShardServer
    ready: Any  # set when the variables have their first values
    results: Any


def worker(index: int, meeting: Meeting, args: argparse.Namespace) -> None:
    """Train until no batch of any epoch is left, and send (index, seconds, how many steps had
    which staleness)."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import tensorflow as tf

    tf1 = tf.compat.v1
    data = digits.load(args.data)
    images, labels = data.x_train[: args.records], data.y_train[: args.records]
    server = tf.distribute.Server(meeting.cluster, "worker", index)
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
    with tf.Graph().as_default(), runner:
        with tf.device(filters[1]):
            x, y, numbers = runner.get_inputs()
        model = shared_model(len(labels), meeting.cluster, args.seed, index)
        read, gradients = reading(model, x, y)
        update, places = updating(model, args.learning_rate)
        meeting.ready.wait(args.limit_s)
        staleness, start = Counter(), time.perf_counter()
        with (
            tf1.Session(server.target, config=config) as session,
            suppress(tf.errors.OutOfRangeError),
        ):
            runner.start(session)
            while True:
                before, values, batch = session.run((read, gradients, numbers))
                pretend_work(index, args)
                after = session.run(update, dict(zip(places, [*values, batch], strict=True)))
                staleness[int(after - before - 1)] += 1
                if index == args.die and staleness.total() == 5:
                    os.kill(os.getpid(), signal.SIGKILL)
        meeting.results.send((index, time.perf_counter() - start, staleness))


def reading(model: Model, images: Any, labels: Any) -> tuple[Any, list[Any]]:
    """Return the version of the parameters that are read, and their gradients at a batch."""
    import tensorflow as tf

    # in this order: a batch, the version, the parameters
    with tf.control_dependencies([images]), tf.control_dependencies([read := model.version + 0]):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images))
    return read, tf.gradients(tf.reduce_mean(losses), model.variables())


def updating(model: Model, rate: float) -> tuple[Any, list[Any]]:
    """Return the version after an update, and the placeholders of it: the gradients, and the
    numbers of the records."""
    import tensorflow as tf

    tf1, variables = tf.compat.v1, model.variables()
    places = [tf1.placeholder(tf.float32, v.shape) for v in variables]
    trained = tf1.placeholder(tf.int64, (None,))
    optimizer = tf1.train.GradientDescentOptimizer(rate)
    applied = [
        optimizer.apply_gradients(zip(places, variables, strict=True)),
        tf1.scatter_add(model.applied, trained, tf.ones_like(trained, tf.int32)),
    ]
    with tf.control_dependencies(applied):
        return tf1.assign_add(model.version, 1), [*places, trained]


def pretend_work(index: int, args: argparse.Namespace) -> None:
    """Take the time of a larger model on an accelerator of its own, which needs no core."""
    time.sleep(args.work_ms / 1000 * (args.slow if index == 1 else 1))


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Train with `--workers` workers; return speed, staleness and accuracy."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    first, *others = free_addresses(1 + args.workers)
    cluster = {"ps": [first], "worker": others}
    names = [f"worker {index}" for index in range(args.workers)]
    receive, send = SPAWN.Pipe(duplex=False)
    with ShardServer() as shards, LocalCluster(args.limit_s) as processes:
        processes.start("parameter server", parameter_server, cluster)
        meeting = Meeting(cluster, shards.address, SPAWN.Event(), send)
        for index, name in enumerate(names):
            processes.start(name, worker, index, meeting, args)
        send.close()
        with chief(cluster, args) as (session, model, accuracy):
            meeting.ready.set()
            codes = processes.wait(*names, survivors=args.die is not None)
            sent = sorted(receive.recv() for code in codes.values() if code == 0)
            applied = session.run(model.applied)
            reached = accuracy()
        return {
            "accuracy": reached,
            "applied": Counter(applied.tolist()),
            "sent": sent,
            "given_again": shards.report().given_again,
        }


@contextmanager
def chief(cluster: dict[str, list[str]], args: argparse.Namespace) -> Iterator[tuple[Any, ...]]:
    """Give the variables their first values; yield a session that only looks at them, the model,
    and a function that returns the test accuracy."""
    import tensorflow as tf

    tf1, data = tf.compat.v1, digits.load(args.data)
    only = tf1.ConfigProto(device_filters=["/job:ps"])
    with tf.Graph().as_default():
        model = shared_model(len(data.y_train[: args.records]), cluster, args.seed)
        images = tf1.placeholder(tf.uint8, (None, 28, 28))
        found = tf.argmax(model(images), axis=1)
        # the session waits for the parameter server
        with tf1.Session(f"grpc://{cluster['ps'][0]}", config=only) as session:
            session.run(tf1.global_variables_initializer())

            def accuracy() -> float:
                return float((session.run(found, {images: data.x_test}) == data.y_test).mean())

            yield session, model, accuracy


def summary(found: dict[str, Any], workers: int) -> dict[str, Any]:
    """Add the figures of all workers to what a run has found."""
    sent = found["sent"]
    return {
        **found,
        "workers": workers,
        "seconds": max(seconds for _, seconds, _ in sent),
        "staleness": sorted(sum((steps for *_, steps in sent), Counter()).elements()),
        "rates": {index: steps.total() / seconds for index, seconds, steps in sent},
    }


def show(found: dict[str, Any], args: argparse.Namespace) -> None:
    steps = found["staleness"]
    middle, high, most = np.percentile(steps, (50, 95, 100))
    per_second = len(steps) / found["seconds"]
    print(
        f"{found['workers']} workers: {per_second:.0f} steps/s, "
        f"{per_second * args.batch_size:.0f} records/s, staleness {middle:.0f} (median), "
        f"{high:.0f} (95 %), {most:.0f} (most), test accuracy {found['accuracy']:.4f}"
    )
    rates = ", ".join(f"worker {i} {rate:.1f}" for i, rate in found["rates"].items())
    print(f"   steps/s: {rates}; batches given to a second worker: {found['given_again']}")
    times = ", ".join(f"{n} records {k} times" for k, n in sorted(found["applied"].items()))
    print(f"   applied in {args.epochs} epochs: {times}", flush=True)


def plot(sweep: list[dict[str, Any]], path: str) -> None:
    """Draw the speed, and the distribution of the staleness, against the number of workers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    counts = [found["workers"] for found in sweep]
    rates = [sum(found["rates"].values()) for found in sweep]
    left.plot(counts, rates, "o-", label="measured")
    left.plot(
        counts, [rates[0] / counts[0] * n for n in counts], "--", color="gray", label="linear"
    )
    left.set(xlabel="workers", ylabel="steps/s", title="What is gained", ylim=0, xticks=counts)
    left.legend()
    steps = [found["staleness"] for found in sweep]
    right.boxplot(steps, tick_labels=counts, whis=(5, 95), showfliers=False)
    right.set(
        xlabel="workers",
        ylabel="updates between reading and applying",
        title="What it costs: staleness (5, 25, 50, 75, 95 %)",
    )
    figure.savefig(path, dpi=120)


def numbers(text: str) -> list[int]:
    """Return numbers of workers, of which each is 1 or more; argparse answers a ValueError."""
    found = [int(part) for part in text.split(",")]
    if min(found) < 1:
        raise ValueError(text)
    return found


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, number = parser.add_argument, {"type": int, "metavar": "N"}
    kinds = ("tensorflow", "torch", "jax")
    add("--framework", choices=kinds, default=kinds[0], help="of the workers (tensorflow)")
    add("--workers", default=2, help="workers (2)", **number)
    add("--sweep", type=numbers, help="numbers of workers to compare, such as 1,2,4")
    add("--slow", type=float, default=1.0, help="worker 1 takes so many times as long (1)")
    add("--die", metavar="WORKER", type=int, help="this worker is killed at its 5th step")
    add("--work-ms", type=float, default=20.0, help="pretend computation of a step (20)")
    add("--epochs", default=2, help="passes over the data (2)", **number)
    add("--batch-size", default=64, help="records of a step (64)", **number)
    add("--records", help="train on the first N records only (all)", **number)
    add("--learning-rate", type=float, default=0.1, help="of a step (0.1)")
    add("--seed", type=int, default=1, help="of the weights (1)")
    add("--data", help="mnist.npz or its folder (the digits that this machine has)")
    add("--limit-s", type=float, default=900.0, help="longest training (900)")
    add("--plot", metavar="PNG", help="picture of speed and staleness")
    add("--quick", action="store_true", help="two epochs of 1,280 records")
    least = {"workers": 1, "epochs": 1, "batch_size": 1, "records": 1}
    args = parsed(parser, **least, slow=0, work_ms=0, learning_rate=0, limit_s=0)
    args.sweep = args.sweep or [args.workers]
    check_rank(parser, args, min(args.sweep))
    if importlib.util.find_spec(args.framework) is None:
        parser.error(f"--framework {args.framework}: pip install {args.framework}")
    if args.quick:
        args.epochs, args.records = 2, args.records or 1280
    return args


def main() -> None:
    args = options()
    sweep = []
    for workers in args.sweep:
        one = argparse.Namespace(**{**vars(args), "workers": workers})
        found = run(one) if args.framework == "tensorflow" else async_arrays.run(one)
        sweep.append(summary(found, workers))
        show(sweep[-1], args)
    if args.plot:
        plot(sweep, args.plot)


if __name__ == "__main__":
    try:
        main()
    except RankDied as error:
        sys.exit(f"training ended: {error}")
