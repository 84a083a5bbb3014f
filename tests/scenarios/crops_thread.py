"""Crops of photographs, blurred against noise by OpenCV in a thread while the accelerator works."""

import contextlib
import queue
import threading
import time

import cv2
import numpy as np
from clock import Clock, arguments

args = arguments()
cv2.setNumThreads(0)
photo = np.random.default_rng(0).integers(0, 255, (1024, 1024, 3), np.uint8)
batches = queue.Queue(maxsize=6)


def crops():
    found = [
        cv2.GaussianBlur(photo[i : i + 256, i : i + 256], (9, 9), 2.0) for i in range(0, 384, 24)
    ]
    return np.stack(found)


def cropper():
    while clock.running():
        batches.put(crops())


clock = Clock(args)
cached = crops()
threads = [
    threading.Thread(target=cropper, daemon=True)
    for _ in range({"slow": 1, "fixed": 2, "free": 0}[args.variant])
]
for thread in threads:
    thread.start()
while clock.running():
    clock.asked()
    batch = cached if args.variant == "free" else batches.get()
    clock.got()
    time.sleep(0.025)  # the step on the accelerator
    clock.step()
clock.report()
while any(thread.is_alive() for thread in threads):
    with contextlib.suppress(queue.Empty):
        batches.get(timeout=0.1)
