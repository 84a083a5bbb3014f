"""Poses, with statistics of every joint after every step."""

import queue
import threading
import time

import numpy as np
from clock import Clock, arguments

args = arguments()
batches = queue.Queue(maxsize=8)
rng = np.random.default_rng(0)


def load():
    return rng.random((128, 17, 2), dtype=np.float32)


def loader():
    while True:
        batches.put(load())


def statistics(poses):
    totals = {}
    for pose in poses.tolist():
        for joint, (x, y) in enumerate(pose):
            seen = totals.setdefault(joint, [0, 0.0, 0.0, 0.0])
            seen[0] += 1
            seen[1] += x
            seen[2] += y
            seen[3] = max(seen[3], (x * x + y * y) ** 0.5)
            key = f"{joint}:{int(x * 10)}:{int(y * 10)}"
            totals[key] = totals.get(key, 0) + 1
    return {str(key): value for key, value in totals.items()}


cached = load()
if args.variant != "free":
    threading.Thread(target=loader, daemon=True).start()
history = []
clock = Clock(args)
while clock.running():
    clock.asked()
    batch = cached if args.variant == "free" else batches.get()
    clock.got()
    time.sleep(0.004)  # the step on the accelerator
    if args.variant != "fixed":
        for _ in range(4):
            history = [*history[-50:], statistics(batch)]
    clock.step()
clock.report()
