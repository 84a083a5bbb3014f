"""Songs of birds from an archive."""

import queue
import threading
import time

import numpy as np
from clock import Clock, arguments, same

import fastfeed

args = arguments()
rng = np.random.default_rng(0)


def load():
    time.sleep(0.02)
    return rng.random((32, 128), dtype=np.float32)


def songs():
    while True:
        yield load()


def songs_ahead():
    batches = queue.Queue(maxsize=8)

    def fill():
        while True:
            batches.put(load())

    for _ in range(4):
        threading.Thread(target=fill, daemon=True).start()
    while True:
        yield batches.get()


loader = {"slow": songs, "fixed": songs_ahead, "free": lambda: same(songs())}[args.variant]
clock = Clock(args)
for _batch in fastfeed.watch(loader()):
    time.sleep(0.012)  # the step on the accelerator
    clock.step()
    if not clock.running():
        break
clock.report()
