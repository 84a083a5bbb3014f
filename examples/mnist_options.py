"""Command line of the trainings on digits, mnist_session.py and mnist_keras.py."""

import argparse
import sys


def options(description):
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--threads", type=int, default=4, help="producer threads (4)")
    add("--sleep", type=float, default=0.0, help="seconds of pretend preprocessing per batch (0)")
    add("--epochs", type=int, default=10, help="passes over the training set (10)")
    add("--batch-size", type=int, default=32, help="records of one step (32)")
    add("--data", help="mnist.npz or its folder (the digits that this machine has)")
    add("--logdir", help="folder for TensorBoard (no summaries)")
    add("--steps", type=int, default=sys.maxsize, help="stop after so many steps (all)")
    args = parser.parse_args()
    if not (args.sleep >= 0 and args.steps >= 1):
        parser.error("--sleep must be 0 or more, and --steps 1 or more")
    return args
