"""Command line of metric_learning.py."""

import argparse


def options(description):
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", help="folder of class folders, or with Omniglot's small zips")
    add("--held-out", nargs="+", help="groups or classes to test on (the last ones)")
    add("--model", choices=["cnn", "resnet50"], default="cnn")
    add("--size", type=int, default=32, help="pixels of a side (32)")
    add("--batch-size", type=int, help="pairs of a batch (as measured)")
    add("--pairs", type=int, default=100_000, help="pairs to train on (100000)")
    add("--learning-rate", type=float, default=1e-3, help="learning rate of Adam (0.001)")
    add("--processes", type=int, default=1, help="worker processes (1)")
    add("--seed", type=int, default=0)
    add("--output", default="build/metric", help="folder of the pictures and figures")
    add("--quick", action="store_true", help="few pairs, to see that it runs")
    args = parser.parse_args()
    if min(args.size, args.pairs, 1 if args.batch_size is None else args.batch_size) < 1:
        parser.error("--size, --batch-size and --pairs must be 1 or more")
    args.pairs = min(args.pairs, 2000) if args.quick else args.pairs
    return args
