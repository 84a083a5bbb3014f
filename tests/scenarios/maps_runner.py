"""Maps from a server, fed by FeedRunner."""

import time

import numpy as np
from clock import Clock, arguments

from fastfeed import FeedRunner

args = arguments()


def maps():
    rng = np.random.default_rng()
    while True:
        time.sleep(0.04)
        yield rng.random((16, 64, 64), dtype=np.float32)


def train(batch):
    time.sleep(0.012)  # on the accelerator


clock = Clock(args)
if args.variant == "free":
    batch = next(maps())
    while clock.running():
        train(batch)
        clock.step()
else:
    with FeedRunner(maps, threads=1 if args.variant == "slow" else 5) as runner:
        batches = iter(runner)
        while clock.running():
            clock.asked()
            batch = next(batches)
            clock.got()
            train(batch)
            clock.step()
clock.report()
