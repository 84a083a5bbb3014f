"""Command line of async_parallel.py."""

from __future__ import annotations

import argparse
import importlib.util

from cluster_options import check_rank, parsed


def numbers(text: str) -> list[int]:
    """Return numbers of workers, of which each is 1 or more; argparse answers a ValueError."""
    found = [int(part) for part in text.split(",")]
    if min(found) < 1:
        raise ValueError(text)
    return found


def options(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
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
    add("--plot", metavar="PNG", help="picture of speed and staleness; its figures as .json")
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
