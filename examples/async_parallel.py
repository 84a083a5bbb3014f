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

The training loop is `worker` in async_sessions.py (TensorFlow) and async_arrays.py (PyTorch, JAX).
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from async_options import options
from async_results import report, show, summary
from local_cluster import SPAWN, LocalCluster, RankDied, free_addresses
from tqdm import tqdm

from fastfeed import StateError
from fastfeed.ranks import ShardServer


class Meeting(NamedTuple):
    """What the processes get from the one that starts them."""

    addresses: list[str]  # of the parameter server, then of each worker
    key: bytes  # of the parameter server of async_arrays.py: without it nobody is answered
    shards: str  # address of the ShardServer
    ready: Any  # set when the parameters have their first values
    start: Any  # a barrier of all workers, so that the speed is that of all of them
    results: Any


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Train with `--workers` workers; return speed, staleness and accuracy."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    if args.framework == "tensorflow":
        import async_sessions as framework
    else:
        import async_arrays as framework
    names = [f"worker {index}" for index in range(args.workers)]
    receive, send = SPAWN.Pipe(duplex=False)
    with ShardServer() as shards, LocalCluster(args.limit_s) as processes:
        meeting = Meeting(
            free_addresses(1 + args.workers),
            secrets.token_bytes(16),
            shards.address,
            ready=SPAWN.Event(),
            start=SPAWN.Barrier(args.workers),
            results=send,
        )
        processes.start("parameter server", framework.parameter_server, meeting, args)
        for index, name in enumerate(names):
            processes.start(name, framework.worker, index, meeting, args)
        send.close()
        with framework.observer(meeting, args) as look, progress(shards, args.epochs):
            codes = processes.wait(*names, survivors=args.die is not None)
            sent = sorted(receive.recv() for code in codes.values() if code == 0)
            applied, accuracy = look()
        again = shards.report().given_again
    return {"accuracy": accuracy, "applied": Counter(applied), "sent": sent, "given_again": again}


@contextmanager
def progress(shards: ShardServer, epochs: int) -> Iterator[None]:
    """Show a progress bar of the batches that the workers have consumed."""
    ended = threading.Event()

    def follow() -> None:
        with tqdm(desc="training", unit=" steps") as bar:
            over = False
            while not over:
                over = ended.wait(0.2)
                with suppress(StateError):  # no worker has joined yet
                    job = shards.report()
                    bar.total = job.batches * epochs
                    bar.update(sum(job.consumed.values()) - bar.n)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def main() -> None:
    args = options(__doc__)
    sweep = []
    for workers in args.sweep:
        one = argparse.Namespace(**{**vars(args), "workers": workers})
        sweep.append(summary(run(one), workers))
        show(sweep[-1], args)
    report(sweep, args)


if __name__ == "__main__":
    try:
        main()
    except RankDied as error:
        sys.exit(f"training ended: {error}")
