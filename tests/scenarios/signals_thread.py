"""Signals from a recorder, one thread ahead of the accelerator."""

import queue
import threading
import time

import numpy as np
from clock import Clock, arguments

args = arguments()
batches = queue.Queue(maxsize=4)
rng = np.random.default_rng(0)


def record():
    time.sleep(0.012)
    return rng.standard_normal((64, 256), dtype=np.float32)


def recorder():
    while True:
        batches.put(record())


def train(batch):
    time.sleep(0.02)  # on the accelerator
    return batch[0, 0]


cached = record()
for _ in range({"slow": 1, "fixed": 4, "free": 0}[args.variant]):
    threading.Thread(target=recorder, daemon=True).start()
clock = Clock(args)
while clock.running():
    clock.asked()
    batch = cached if args.variant == "free" else batches.get()
    clock.got()
    train(batch)
    clock.step()
clock.report()
