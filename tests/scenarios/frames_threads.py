"""Frames of films from a store, fetched by threads."""

import queue
import threading
import time

import numpy as np
from clock import Clock, arguments

args = arguments()
batches = queue.Queue(maxsize=16)


def fetch(rng):
    time.sleep(0.03)
    return rng.random((16, 64, 64), dtype=np.float32)


def fetcher(seed):
    rng = np.random.default_rng(seed)
    while True:
        batches.put(fetch(rng))


def train(batch):
    time.sleep(0.008)  # on the accelerator


cached = fetch(np.random.default_rng(0))
for seed in range({"slow": 2, "fixed": 6, "free": 0}[args.variant]):
    threading.Thread(target=fetcher, args=(seed,), daemon=True).start()
clock = Clock(args)
while clock.running():
    clock.asked()
    batch = cached if args.variant == "free" else batches.get()
    clock.got()
    train(batch)
    clock.step()
clock.report()
