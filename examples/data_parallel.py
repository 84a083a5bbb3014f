"""Synchronous data parallelism with tf.distribute: every rank trains on its shard of each epoch.

    python examples/data_parallel.py --workers 2
    python examples/data_parallel.py --workers 2 --die 1         # rank 1 is killed on the way
    python examples/data_parallel.py --workers 4 --start 2       # two ranks never come
    python examples/data_parallel.py --workers 3 --slow 4        # rank 1 takes 4 times as long
    python examples/data_parallel.py --large-batch 8             # a minibatch 8 times larger
    python examples/data_parallel.py --compare --plot ranks.png  # 1 rank and 2, three seeds each

Here the ranks are processes of this machine. On several machines a scheduler starts `rank` with a
TF_CONFIG of its own; nothing else changes. All ranks have one seed, so they agree on the order of
each epoch without a word, and `shard=` gives them disjoint parts and equally many steps.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

import numpy as np
from data_parallel_options import options
from data_parallel_studies import STUDIES
from fault_injection import die, pretend_work
from local_cluster import SPAWN, LocalCluster, RankDied, free_addresses, meet

from fastfeed import FeedRunner, OptionError, Shard
from fastfeed.benchmark import digits

WATCHED = 400  # the last steps of each rank, whose times are sent


def rank(number: int, addresses: list[str], args: argparse.Namespace, results: Any) -> None:
    """Train as one rank of MultiWorkerMirroredStrategy."""
    task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": number}}
    os.environ |= {"TF_CONFIG": json.dumps(task), "TF_CPP_MIN_LOG_LEVEL": "2"}
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)  # the ranks share the cores
    data = digits.load(args.data)
    world = len(addresses)
    try:
        runner = FeedRunner(
            (data.x_train[: args.records], data.y_train[: args.records]),
            batch_size=args.batch_size,
            shard=Shard(number, world, remainder="drop"),  # or "pad": some come twice
            last_batch="drop",  # so that every gradient is a mean over as many records
            shuffle=True,
            seed=args.seed,
            epochs=args.epochs,
        )
        with runner:
            steps = len(runner) // args.epochs
            meet(addresses, number, limit_s=args.connect_s)
            strategy = tf.distribute.MultiWorkerMirroredStrategy()
            found = train(strategy, runner, data, steps=steps, number=number, args=args)
    except (OptionError, TimeoutError) as error:
        sys.exit(f"rank {number}: {error}")
    except tf.errors.OpError as error:
        reason = error.message.partition("\n")[0]  # also ranks with another list of addresses
        what = f"another rank died or cannot be reached ({type(error).__name__}: {reason})"
        sys.exit(f"rank {number}: {what}")
    results.send((number, *found))


def train(strategy: Any, runner: FeedRunner, data: Any, *, steps: int, number: int, args: Any):
    """Return the test accuracy of each epoch, which only the first rank computes and prints, and
    the seconds that the last steps took."""
    import tensorflow as tf

    world = strategy.num_replicas_in_sync
    step, model = step_of(strategy, args, steps=steps)
    history, seconds, start = [], [], time.perf_counter()
    for done, batch in enumerate(runner.dataset(), start=1):
        pretend_work(number, args)
        began = time.perf_counter()
        step(*batch)  # waits for the gradients of all ranks
        seconds.append(time.perf_counter() - began)
        if number == args.die and done == max(1, steps // 2):
            die()
        if done % steps == 0 and number == 0:
            found = tf.argmax(model(data.x_test), axis=1).numpy()
            history.append(float((found == data.y_test).mean()))
            rate = done * args.batch_size * world / (time.perf_counter() - start)
            print(
                f"epoch {len(history)}: {steps} steps on each of {world} ranks, "
                f"{rate:.0f} records/s, test accuracy {history[-1]:.4f}",
                flush=True,
            )
    return history, np.array(seconds[-WATCHED:], np.float32)


def step_of(strategy: Any, args: argparse.Namespace, *, steps: int) -> tuple[Any, Any]:
    """Return a function that trains on a batch of each rank, and the model."""
    import tensorflow as tf
    from large_minibatch import make_optimizers

    world = strategy.num_replicas_in_sync
    tf.keras.utils.set_random_seed(args.seed)
    with strategy.scope():
        layers = tf.keras.layers
        model = tf.keras.Sequential(
            [
                tf.keras.Input((28, 28)),
                layers.Rescaling(1 / 255),
                layers.Flatten(),
                layers.Dense(100, "relu"),
                layers.Dense(10),
            ]
        )
        optimizers = make_optimizers(args, scale=args.rate_scale or world, steps=steps)
        for optimizer in optimizers:
            optimizer.build(model.trainable_variables)

    def replica_step(images: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images))
            loss = tf.reduce_mean(losses) / world  # the optimizer adds the gradients of all ranks
        gradients = tape.gradient(loss, model.trainable_variables)
        for optimizer in optimizers:
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    @tf.function
    def step(images: Any, labels: Any) -> None:
        strategy.run(replica_step, args=(images, labels))  # this rank's tensors, no scatter

    return step, model


def run(args: argparse.Namespace) -> list[tuple[int, list[float], np.ndarray]]:
    """Train with `--workers` ranks; return the number of each, and what `train` returned there."""
    addresses = free_addresses(args.workers)
    receive, send = SPAWN.Pipe(duplex=False)
    with receive, LocalCluster(limit_s=args.limit_s) as cluster:
        with send:
            for number in range(args.workers if args.start is None else args.start):
                cluster.start(f"rank {number}", rank, number, addresses, args, send)
        cluster.wait()
        return sorted((receive.recv() for _ in range(args.workers)), key=lambda sent: sent[0])


if __name__ == "__main__":
    given = options(__doc__)
    try:
        STUDIES[given.study](given, run) if given.study else run(given)
    except RankDied as error:
        sys.exit(f"training ended: {error}")
