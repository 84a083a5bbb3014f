"""Tides of harbours, by two threads that share a table."""

import queue
import signal
import threading
import time

import numpy as np
from clock import Clock, arguments

args = arguments()
signal.alarm(int(args.seconds) + 40)
batches = queue.Queue(maxsize=4)
table, log = threading.Lock(), threading.Lock()
seen = {"count": 0}


def tide():
    with table:
        seen["count"] += 1
        time.sleep(0.002)
        if seen["count"] > 500 and args.variant == "slow":
            time.sleep(0.05)  # the table is written
            with log:
                seen["last"] = time.time()
    return np.zeros((64, 64), np.float32)


def note():
    with log:
        time.sleep(0.001)
        if seen["count"] > 500 and args.variant == "slow":
            time.sleep(0.05)  # and the log
            with table:
                seen["noted"] = seen["count"]


def reader():
    while True:
        batches.put(tide())
        note()


cached = tide()
for _ in range(0 if args.variant == "free" else 2):
    threading.Thread(target=reader, daemon=True).start()
clock = Clock(args)
while clock.running():
    clock.asked()
    batch = cached if args.variant == "free" else batches.get()
    clock.got()
    time.sleep(0.01)  # the step on the accelerator
    clock.step()
clock.report()
