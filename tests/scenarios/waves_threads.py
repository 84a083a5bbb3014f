"""Waves of a sea, drawn anew for every epoch by a thread of its own."""

import queue
import threading
import time

import numpy as np
from clock import Clock, arguments

args = arguments()
BATCHES = 80


def open_epoch(number):
    time.sleep(0.5)  # the index of the epoch comes from the server
    return np.random.default_rng(number).permutation(BATCHES)


def fill(batches, number):
    for index in open_epoch(number):
        batches.put(np.full((64, 256), index, np.float32))
    batches.put(None)


def epochs():
    number = 0
    while True:
        yield start(number)
        number += 1


def epochs_ahead():
    coming, number = start(0), 0
    while True:
        number += 1
        now, coming = coming, start(number)
        yield now


def start(number):
    batches = queue.Queue(maxsize=4)
    threading.Thread(target=fill, args=(batches, number), daemon=True).start()
    return drained(batches)


def drained(batches):
    while (batch := batches.get()) is not None:
        yield batch


def cached():
    while True:
        yield [np.zeros((64, 256), np.float32)] * BATCHES


clock = Clock(args)
for epoch in {"slow": epochs, "fixed": epochs_ahead, "free": cached}[args.variant]():
    batches = iter(epoch)
    while clock.running():
        clock.asked()
        batch = next(batches, None)
        clock.got()
        if batch is None:
            break
        time.sleep(0.012)  # the step on the accelerator
        clock.step()
    if not clock.running():
        break
clock.report()
