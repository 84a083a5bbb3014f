"""Pictures of an archive, unpacked by two threads."""

import queue
import threading
import time
import zlib

import numpy as np
from clock import Clock, arguments

args = arguments()
side = 1024 if args.variant == "fixed" else 1536  # the stored size
rows = (np.add.outer(np.arange(128), np.arange(side * 3)) % 251).astype(np.uint8)
rows ^= np.random.default_rng(0).integers(0, 8, rows.shape, np.uint8)
packed = [zlib.compress(rows.tobytes(), 1)] * (side // 128)
batches = queue.Queue(maxsize=4)


def unpack():
    found = [zlib.decompress(part) for part in packed]
    return np.frombuffer(b"".join(found), np.uint8).reshape(side, side, 3)


def unpacker():
    while True:
        batches.put(unpack())


cached = unpack()
for _ in range(0 if args.variant == "free" else 2):
    threading.Thread(target=unpacker, daemon=True).start()
clock = Clock(args)
while clock.running():
    clock.asked()
    batch = cached if args.variant == "free" else batches.get()
    clock.got()
    time.sleep(0.006)  # the step on the accelerator
    clock.step()
clock.report()
