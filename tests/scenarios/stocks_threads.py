"""Prices of stocks, from lists of rows into arrays, one thread ahead."""

import queue
import threading
import time

import numpy as np
from clock import Clock, arguments

args = arguments()
values = np.random.default_rng(0).random((768, 2000))
rows = values.tolist() if args.variant == "slow" else list(values.astype(np.float32))
batches = queue.Queue(maxsize=4)


def batch_of(rows):
    return np.stack([np.array(row, np.float32) for row in rows])


def loader():
    while True:
        batches.put(batch_of(rows))


cached = batch_of(rows)
if args.variant != "free":
    threading.Thread(target=loader, daemon=True).start()
clock = Clock(args)
while clock.running():
    clock.asked()
    batch = cached if args.variant == "free" else batches.get()
    clock.got()
    time.sleep(0.01)  # the step on the accelerator
    clock.step()
clock.report()
