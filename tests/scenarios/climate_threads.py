"""Fields of a climate model, joined and converted by a thread."""

import queue
import threading
import time

import numpy as np
from clock import Clock, arguments

args = arguments()
days = np.random.default_rng(0).random((6, 256, 512))
fields = [days[i % 6] for i in range(72)]
if args.variant != "slow":
    joined = np.stack(fields).astype(np.float32)
batches = queue.Queue(maxsize=2)


def batch_of(fields):
    if args.variant == "slow":
        return np.stack(fields).astype(np.float32)
    return joined


def loader():
    while True:
        batches.put(batch_of(fields))


cached = batch_of(fields)
if args.variant != "free":
    threading.Thread(target=loader, daemon=True).start()
clock = Clock(args)
while clock.running():
    clock.asked()
    batch = cached if args.variant == "free" else batches.get()
    clock.got()
    time.sleep(0.008)  # the step on the accelerator
    clock.step()
clock.report()
