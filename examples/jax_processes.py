"""Synchronous data parallelism in JAX: processes that share one array, each fed its shard.

    python examples/jax_processes.py --processes 2
    python examples/jax_processes.py --die 1         # process 1 is killed on the way

Each process has one device. Its batches are its part of a global batch, and XLA adds up the
gradients, over gloo on CPUs.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

import numpy as np
from cluster_options import check_rank, parsed
from fault_injection import die
from local_cluster import LocalCluster, RankDied, free_addresses

from fastfeed import FeedRunner, OptionError, Shard
from fastfeed.benchmark import digits


def process(number: int, address: str, args: argparse.Namespace) -> None:
    """Train as one of `--processes` processes."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        address, args.processes, number, initialization_timeout=int(args.connect_s)
    )
    data = digits.load(args.data)
    try:
        runner = FeedRunner(
            (data.x_train[: args.records], data.y_train[: args.records].astype(np.int32)),
            batch_size=args.batch_size,
            shard=Shard(number, args.processes, remainder="drop"),
            last_batch="drop",
            shuffle=True,
            seed=args.seed,
        )
        with runner:
            train(runner, data, args)
    except OptionError as error:
        sys.exit(f"process {number}: {error}")
    except jax.errors.JaxRuntimeError as error:
        what = str(error).rpartition("computation: ")[2]
        print(f"process {number}: lost another process: {what}", file=sys.stderr, flush=True)
        os._exit(1)


def train(runner: FeedRunner, data: Any, args: argparse.Namespace) -> None:
    import jax
    import jax.numpy as jnp

    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    parts = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    rate = args.learning_rate * args.processes  # as in data_parallel.py

    def scores(layers: Any, images: Any) -> Any:
        (w, b), (v, c) = layers
        return jax.nn.relu(images.reshape(-1, 784) / 255.0 @ w + b) @ v + c

    def loss_of(layers: Any, images: Any, labels: Any) -> Any:
        chosen = jnp.take_along_axis(
            jax.nn.log_softmax(scores(layers, images)), labels[:, None], axis=1
        )
        return -chosen.mean()  # over the batches of all processes

    @jax.jit
    def step(layers: Any, images: Any, labels: Any) -> Any:
        gradients = jax.grad(loss_of)(layers, images, labels)
        return jax.tree.map(lambda value, by: value - rate * by, layers, gradients)

    rng = np.random.default_rng(args.seed)  # the same weights everywhere
    layers = [
        (rng.normal(0, rows**-0.5, (rows, columns)).astype(np.float32), np.zeros(columns, "f4"))
        for rows, columns in ((784, 100), (100, 10))
    ]

    def put(batch: Any) -> Any:
        return jax.make_array_from_process_local_data(parts, batch)

    batches = runner.prefetch_to_device(lambda batch: jax.tree.map(put, batch))
    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        for done, (images, labels) in enumerate(batches, start=1):
            layers = step(layers, images, labels)
            if jax.process_index() == args.die and done == 3:
                die()
        layers = jax.block_until_ready(layers)
        per_second = done * args.batch_size * args.processes / (time.perf_counter() - start)
        here = jax.tree.map(lambda value: value.addressable_data(0), layers)
        right = np.asarray(scores(here, data.x_test)).argmax(1) == data.y_test
        if jax.process_index() == 0:
            print(
                f"epoch {epoch}: {done} steps on each of {args.processes} processes, "
                f"{per_second:.0f} records/s, test accuracy {right.mean():.4f}",
                flush=True,
            )


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, number = parser.add_argument, {"type": int, "metavar": "N"}
    add("--processes", default=2, help="processes (2)", **number)
    add("--die", metavar="PROCESS", type=int, help="this process is killed at its third step")
    add("--epochs", default=5, help="passes over the data (5)", **number)
    add("--batch-size", default=64, help="records of a step in each process (64)", **number)
    add("--records", help="train on the first N records only (all)", **number)
    add("--learning-rate", type=float, default=0.1, help="of one process (0.1)")
    add("--seed", type=int, default=1, help="of the weights and the order, everywhere (1)")
    add("--data", help="mnist.npz or its folder (the digits that this machine has)")
    add("--connect-s", type=float, default=60.0, help="longest wait for the other processes (60)")
    add("--limit-s", type=float, default=900.0, help="longest training (900)")
    add("--quick", action="store_true", help="two epochs of 1,280 records")
    least = {"processes": 1, "epochs": 1, "batch_size": 1, "records": 1, "connect_s": 1}
    args = parsed(parser, **least, learning_rate=0, limit_s=0)
    check_rank(parser, args, args.processes)
    if args.quick:
        args.epochs, args.records = min(args.epochs, 2), args.records or 1280
    return args


def main() -> None:
    args = options()
    (address,) = free_addresses(1)
    with LocalCluster(args.limit_s) as cluster:
        for number in range(args.processes):
            cluster.start(f"process {number}", process, number, address, args)
        cluster.wait()


if __name__ == "__main__":
    try:
        main()
    except RankDied as error:
        sys.exit(f"training ended: {error}")
