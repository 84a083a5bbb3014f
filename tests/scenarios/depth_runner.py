"""Depth maps from a camera, fed by FeedRunner."""

import time

import numpy as np
from clock import Clock, arguments

from fastfeed import FeedRunner

args = arguments()


def depths():
    rng = np.random.default_rng()
    while True:
        time.sleep(0.02)
        yield rng.random((16, 64, 64), dtype=np.float32)


def train(batch):
    time.sleep(0.014)  # on the accelerator


clock = Clock(args)
if args.variant == "free":
    batch = next(depths())
    while clock.running():
        train(batch)
        clock.step()
else:
    with FeedRunner(depths, threads=3 if args.variant == "slow" else 6) as runner:
        batches = iter(runner)
        while clock.running():
            clock.asked()
            batch = next(batches)
            clock.got()
            train(batch)
            clock.step()
clock.report()
