"""Synchronous data parallelism with tf.distribute: every rank trains on its shard of each epoch.

    python examples/data_parallel.py --workers 2
    python examples/data_parallel.py --workers 2 --die 1         # rank 1 is killed on the way
    python examples/data_parallel.py --workers 4 --start 2       # two ranks never come
    python examples/data_parallel.py --compare --plot ranks.png  # 1 rank and 2, three seeds each

Here the ranks are processes of this machine. On several machines a scheduler starts `rank` with a
TF_CONFIG of its own; nothing else changes. All ranks have one seed, so they agree on the order of
each epoch without a word, and `shard=` gives them disjoint parts and equally many steps.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from typing import Any

from local_cluster import (
    LocalCluster,
    RankDied,
    check_rank,
    free_addresses,
    meet,
    parsed,
)

from fastfeed import FeedRunner, OptionError, Shard
from fastfeed.benchmark import digits

OPTIMIZERS = ("momentum", "rmsprop-to-momentum", "lamb")


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
            shard=Shard(
                number, world, remainder="drop"
            ),  # "pad" delivers some records twice instead
            last_batch="drop",  # so that every gradient is a mean over as many records
            shuffle=True,
            seed=args.seed,
            epochs=args.epochs,
        )
        with runner:
            steps = len(runner) // args.epochs
            meet(addresses, number, limit_s=args.connect_s)
            strategy = tf.distribute.MultiWorkerMirroredStrategy()
            history = train(strategy, runner, data, steps=steps, number=number, args=args)
    except (OptionError, TimeoutError) as error:
        sys.exit(f"rank {number}: {error}")
    except tf.errors.OpError as error:
        reason = error.message.partition("\n")[0]  # also ranks with another list of addresses
        what = f"another rank died or cannot be reached ({type(error).__name__}: {reason})"
        sys.exit(f"rank {number}: {what}")
    if number == 0:
        results.send(history)


def train(strategy: Any, runner: FeedRunner, data: Any, *, steps: int, number: int, args: Any):
    """Return the test accuracy of each epoch; only the first rank computes and prints it."""
    import tensorflow as tf

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
        optimizers = make_optimizers(args, world=world, steps=steps)
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

    history, start = [], time.perf_counter()
    for done, batch in enumerate(runner.dataset(), start=1):
        step(*batch)
        if number == args.die and done == max(1, steps // 2):
            os.kill(os.getpid(), signal.SIGKILL)
        if done % steps == 0 and number == 0:
            found = tf.argmax(model(data.x_test), axis=1).numpy()
            history.append(float((found == data.y_test).mean()))
            rate = done * args.batch_size * world / (time.perf_counter() - start)
            print(
                f"epoch {len(history)}: {steps} steps on each of {world} ranks, "
                f"{rate:.0f} records/s, test accuracy {history[-1]:.4f}",
                flush=True,
            )
    return history


def make_optimizers(args: argparse.Namespace, *, world: int, steps: int) -> list[Any]:
    """Return the optimizers that are applied to each gradient, usually one.

    The rate grows with the ranks: k ranks average k times the records, and k small steps with rate
    r go about as far as one with k * r (Goyal et al., Accurate, large minibatch SGD, 2017). The
    reason: the noise of SGD has the scale r * N / (B * (1 - m)) for N records, batches of B and
    momentum m, and it decides what is found (Smith and Le, 2018); r / B keeps it. At the beginning
    the gradient changes too fast for so long a step, so the rate rises over the first epochs.

    "rmsprop-to-momentum" (Akiba et al., ImageNet in 15 minutes, 2017) begins with RMSprop and fades
    to momentum. Momentum is linear, so two optimizers of Keras, applied to the same gradient, are
    their mixed update; they fade along an exponential and a line, this along a line. "lamb" (You et
    al., 2020) has a rate for each layer, as LARS (You et al., 2017) does, which Keras lacks.
    """
    import keras

    rise, total = max(1, int(args.warmup * steps)), args.epochs * steps
    peak = args.learning_rate * world

    def risen(first: float, peak: float) -> Any:
        return keras.optimizers.schedules.CosineDecay(
            first, total - rise, warmup_target=peak, warmup_steps=rise
        )

    if args.optimizer == "lamb":
        return [keras.optimizers.Lamb(risen(args.learning_rate / 10, peak / 10))]
    if args.optimizer == "momentum":
        return [keras.optimizers.SGD(risen(args.learning_rate, peak), momentum=0.9)]
    fading = keras.optimizers.schedules.PolynomialDecay(0.001, rise, end_learning_rate=0.0)
    return [
        keras.optimizers.RMSprop(fading, momentum=0.9),
        keras.optimizers.SGD(risen(0.0, peak), momentum=0.9),
    ]


def run(args: argparse.Namespace) -> list[float]:
    """Train with `--workers` ranks and return the accuracy of each epoch."""
    import multiprocessing

    addresses = free_addresses(args.workers)
    receive, send = multiprocessing.get_context("spawn").Pipe(duplex=False)
    with receive, LocalCluster(limit_s=args.limit_s) as cluster:
        with send:
            for number in range(args.workers if args.start is None else args.start):
                cluster.start(f"rank {number}", rank, number, addresses, args, send)
        cluster.wait()
        return receive.recv()


def compare(args: argparse.Namespace) -> None:
    """Print and plot the accuracy of one rank and of several, for three seeds each."""
    found: dict[int, list[list[float]]] = {}
    for seed in (1, 2, 3):
        for workers in (1, args.workers):
            print(f"seed {seed}, {workers} ranks", flush=True)
            one = argparse.Namespace(**{**vars(args), "seed": seed, "workers": workers})
            found.setdefault(workers, []).append(run(one))
    for workers, histories in found.items():
        last = [history[-1] for history in histories]
        print(f"{workers} ranks: {statistics.mean(last):.4f} ({min(last):.4f} to {max(last):.4f})")
    if args.plot:
        plot(found, args.plot)


def plot(found: dict[int, list[list[float]]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    for (workers, histories), color in zip(found.items(), ("tab:gray", "tab:blue"), strict=True):
        for turn, history in enumerate(histories):
            label = f"{workers} rank{'s' * (workers > 1)}" if not turn else None
            axes.plot(range(1, len(history) + 1), history, ".-", color=color, label=label)
    axes.set(xlabel="epoch", ylabel="test accuracy", title="Each line is one seed")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()
    figure.savefig(path, dpi=120)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, number = parser.add_argument, {"type": int, "metavar": "N"}
    add("--workers", default=2, help="ranks (2)", **number)
    add("--start", help="start only so many of them, to see the error", **number)
    add("--die", metavar="RANK", type=int, help="this rank is killed in the first epoch")
    add("--epochs", default=5, help="passes over the data (5)", **number)
    add("--batch-size", default=64, help="records of a step on each rank (64)", **number)
    add("--records", help="train on the first N records only (all)", **number)
    add("--learning-rate", type=float, default=0.05, help="of one rank (0.05)")
    add("--warmup", type=float, default=1.0, help="epochs in which the rate rises (1)")
    add("--optimizer", choices=OPTIMIZERS, default=OPTIMIZERS[0], help=f"({OPTIMIZERS[0]})")
    add("--seed", type=int, default=1, help="of the weights and the order, in all ranks (1)")
    add("--data", help="mnist.npz or its folder (the digits that this machine has)")
    add("--connect-s", type=float, default=60.0, help="longest wait for the other ranks (60)")
    add("--limit-s", type=float, default=900.0, help="longest training (900)")
    add("--compare", action="store_true", help="one rank and `--workers`, three seeds each")
    add("--plot", metavar="PNG", help="picture of a comparison")
    add("--quick", action="store_true", help="two epochs of 1,280 records")
    least = {"workers": 1, "start": 1, "epochs": 1, "batch_size": 1, "records": 1, "warmup": 0}
    args = parsed(parser, **least, learning_rate=0, connect_s=0, limit_s=0)
    if args.start is not None and args.start > args.workers:
        parser.error(f"--start {args.start}: there are {args.workers} ranks, see --workers")
    check_rank(parser, args, args.start or args.workers)
    if args.plot and not args.compare:
        parser.error("--plot draws a comparison: it needs --compare")
    if args.quick:
        args.epochs, args.records = min(args.epochs, 2), args.records or 1280
    return args


if __name__ == "__main__":
    given = options()
    try:
        compare(given) if given.compare else run(given)
    except RankDied as error:
        sys.exit(f"training ended: {error}")
