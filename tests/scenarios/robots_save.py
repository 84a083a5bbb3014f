"""Arms of robots; the weights are kept now and then."""

import os
import queue
import tempfile
import threading
import time

import numpy as np
from clock import Clock, arguments

args = arguments()
batches = queue.Queue(maxsize=8)
weights = np.random.default_rng(0).random((64, 512, 512), dtype=np.float32)


def load():
    return np.ones((64, 256), np.float32)


def loader():
    while True:
        time.sleep(0.002)
        batches.put(load())


def save(folder):
    np.savez(os.path.join(folder, "weights.npz"), *weights)


cached = load()
if args.variant != "free":
    threading.Thread(target=loader, daemon=True).start()
every = 1000 if args.variant == "fixed" else 60
done = 0
clock = Clock(args)
with tempfile.TemporaryDirectory(dir=".") as folder:
    while clock.running():
        clock.asked()
        batch = cached if args.variant == "free" else batches.get()
        clock.got()
        time.sleep(0.008)  # the step on the accelerator
        done += 1
        if done % every == 0:
            save(folder)
        clock.step()
clock.report()
