"""Papers, fetched by a pool of four threads and taken in order."""

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from clock import Clock, arguments

args = arguments()
ahead = 64 if args.variant == "fixed" else 4


def fetch(index):
    time.sleep(0.2 if index % 20 == 7 else 0.01)
    return np.full((64, 128), index, np.float32)


def in_order(pool):
    pending = deque(pool.submit(fetch, index) for index in range(ahead))
    index = ahead
    while True:
        yield pending.popleft().result()
        pending.append(pool.submit(fetch, index))
        index += 1


def train(batch):
    time.sleep(0.012)  # on the accelerator


cached = fetch(0)
pool = ThreadPoolExecutor(4)
stream = in_order(pool)
clock = Clock(args)
while clock.running():
    clock.asked()
    batch = cached if args.variant == "free" else next(stream)
    clock.got()
    train(batch)
    clock.step()
clock.report()
pool.shutdown(wait=False, cancel_futures=True)
