"""Volumes from a scanner: smoothed, then trained on."""

import queue
import threading
import time

import cv2
import numpy as np
from clock import Clock, arguments

args = arguments()
cv2.setNumThreads(0)
raw = np.random.default_rng(0).random((24, 384, 384), dtype=np.float32)


def volumes():
    while True:
        yield np.stack([cv2.GaussianBlur(layer, (15, 15), 3.0) for layer in raw])


def ahead(stream, size=4):
    batches = queue.Queue(maxsize=size)

    def fill():
        for batch in stream:
            batches.put(batch)

    threading.Thread(target=fill, daemon=True).start()
    while True:
        yield batches.get()


def train(batch):
    time.sleep(0.03)  # on the accelerator


stream = volumes()
cached = next(stream)
if args.variant == "fixed":
    stream = ahead(stream)
clock = Clock(args)
while clock.running():
    clock.asked()
    batch = cached if args.variant == "free" else next(stream)
    clock.got()
    train(batch)
    clock.step()
clock.report()
