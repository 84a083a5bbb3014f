"""Clouds of points in shards on a disk."""

import mmap
import os
import queue
import tempfile
import threading
import time

import numpy as np
from clock import Clock, arguments

args = arguments()
SHARD, SHARDS = 24 << 20, 4
batches = queue.Queue(maxsize=4)


def write(path):
    block = os.urandom(1 << 20)
    with open(path, "wb") as file:
        for _ in range(SHARDS * SHARD >> 20):
            file.write(block)
        os.fsync(file.fileno())


def read(file, buffer, shard):
    os.preadv(file, [buffer], shard * SHARD)
    return np.frombuffer(buffer, np.float32)[: 64 * 1024].reshape(64, 1024).copy()


def reader(path):
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer, shard = mmap.mmap(-1, SHARD), 0
    while True:
        batches.put(read(file, buffer, shard % SHARDS))
        shard += 1


def reader_of_what_is_used(path):
    file = os.open(path, os.O_RDONLY)
    shard = 0
    while True:
        found = os.pread(file, 64 * 1024 * 4, shard % SHARDS * SHARD)
        batches.put(np.frombuffer(found, np.float32).reshape(64, 1024))
        shard += 1


with tempfile.TemporaryDirectory(dir=".") as folder:
    path = os.path.join(folder, "shards")
    write(path)
    cached = np.zeros((64, 1024), np.float32)
    if args.variant != "free":
        work = reader if args.variant == "slow" else reader_of_what_is_used
        threading.Thread(target=work, args=(path,), daemon=True).start()
    clock = Clock(args)
    while clock.running():
        clock.asked()
        batch = cached if args.variant == "free" else batches.get()
        clock.got()
        time.sleep(0.008)  # the step on the accelerator
        clock.step()
    clock.report()
