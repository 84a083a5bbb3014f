"""Ponds seen by a camera, smoothed by OpenCV in a thread."""

import contextlib
import os
import queue
import threading
import time

import cv2
import neighbour
import numpy as np
from clock import Clock, arguments

args = arguments()
if args.variant != "fixed":
    neighbour.moves_in(os.getpid())
cv2.setNumThreads(0)
photo = np.random.default_rng(0).integers(0, 255, (512, 512, 3), np.uint8)
batches = queue.Queue(maxsize=6)


def smooth():
    return np.stack([cv2.GaussianBlur(photo, (15, 15), 3.0) for _ in range(6)])


def smoother():
    while clock.running():
        batches.put(smooth())


clock = Clock(args)
cached = smooth()
threads = [] if args.variant == "free" else [threading.Thread(target=smoother, daemon=True)]
for thread in threads:
    thread.start()
while clock.running():
    clock.asked()
    batch = cached if args.variant == "free" else batches.get()
    clock.got()
    time.sleep(0.014)  # the step on the accelerator
    clock.step()
clock.report()
while any(thread.is_alive() for thread in threads):
    with contextlib.suppress(queue.Empty):
        batches.get(timeout=0.1)
