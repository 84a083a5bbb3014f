"""Command line of data_parallel.py."""

from __future__ import annotations

import argparse

from cluster_options import check_rank, parsed

OPTIMIZERS = ("momentum", "rmsprop-to-momentum", "lamb")
SLOW_WORK_MS = 20.0  # pretended computation of a step, without which nobody would be slow


def options(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, number = parser.add_argument, {"type": int, "metavar": "N"}
    add("--workers", default=2, help="ranks (2)", **number)
    add("--start", help="start only so many of them, to see the error", **number)
    add("--die", metavar="RANK", type=int, help="this rank is killed in the first epoch")
    add("--epochs", default=5, help="passes over the data (5)", **number)
    add("--batch-size", default=64, help="records of a step on each rank (64)", **number)
    add("--records", help="train on the first N records only (all)", **number)
    add("--learning-rate", type=float, default=0.05, help="of one rank (0.05)")
    add("--rate-scale", type=float, help="times the learning rate at its peak (the ranks)")
    add("--warmup", type=float, default=1.0, help="epochs in which the rate rises (1)")
    add("--optimizer", choices=OPTIMIZERS, default=OPTIMIZERS[0], help=f"({OPTIMIZERS[0]})")
    add("--work-ms", type=float, help=f"pretend computation of a step (0; {SLOW_WORK_MS:g} slow)")
    add("--seed", type=int, default=1, help="of the weights and the order, in all ranks (1)")
    add("--data", help="mnist.npz or its folder (the digits that this machine has)")
    add("--connect-s", type=float, default=60.0, help="longest wait for the other ranks (60)")
    add("--limit-s", type=float, default=900.0, help="longest training (900)")
    studies = parser.add_mutually_exclusive_group()
    add = studies.add_argument
    add("--compare", action="store_true", help="one rank and `--workers`, three seeds each")
    add("--large-batch", metavar="TIMES", type=int, help="one rank, with minibatches so large")
    add("--slow", metavar="TIMES", type=float, help="rank 1 takes so many times as long")
    add = parser.add_argument
    add("--plot", metavar="PNG", help="picture of one of these, and beside it its figures as .json")
    add("--quick", action="store_true", help="two epochs of 1,280 records, one seed")
    least = {"workers": 1, "start": 1, "epochs": 1, "batch_size": 1, "records": 1, "warmup": 0}
    least |= {"work_ms": 0, "rate_scale": 0, "large_batch": 2, "slow": 1}
    args = parsed(parser, **least, learning_rate=0, connect_s=0, limit_s=0)
    if args.start is not None and args.start > args.workers:
        parser.error(f"--start {args.start}: there are {args.workers} ranks, see --workers")
    check_rank(parser, args, args.start or args.workers)
    given = {"compare": args.compare, "large_batch": args.large_batch, "slow": args.slow}
    args.study = next((name for name, value in given.items() if value), None)
    if args.plot and not args.study:
        parser.error("--plot draws a comparison: it needs --compare, --large-batch or --slow")
    if args.study == "slow" and args.workers < 2:
        parser.error("--slow: nobody waits for one rank, see --workers")
    if args.quick:
        args.epochs, args.records = min(args.epochs, 2), args.records or 1280
    args.work_ms = (SLOW_WORK_MS if args.slow else 0.0) if args.work_ms is None else args.work_ms
    args.slow = args.slow or 1.0
    return args
