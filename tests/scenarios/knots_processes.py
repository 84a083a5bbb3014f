"""Knots in strings, by a process of their own."""

import multiprocessing
import os
import signal
import time

import numpy as np
from clock import Clock, arguments

args = arguments()
signal.alarm(int(args.seconds) + 40)


def knots(batches, limit):
    count = 0
    while True:
        time.sleep(0.004)
        batches.put(np.full((64, 64), count, np.float32))
        count += 1
        if count == limit:
            os.kill(os.getpid(), signal.SIGKILL)  # what the kernel does for want of memory


def main():
    context = multiprocessing.get_context("spawn")
    batches = context.Queue(maxsize=4)
    limit = 500 if args.variant == "slow" else None
    worker = context.Process(target=knots, args=(batches, limit), daemon=True)
    if args.variant != "free":
        worker.start()
    cached = np.zeros((64, 64), np.float32)
    clock = Clock(args)
    while clock.running():
        clock.asked()
        batch = cached if args.variant == "free" else batches.get()  # noqa: F841
        clock.got()
        time.sleep(0.01)  # the step on the accelerator
        clock.step()
    clock.report()
    if worker.pid is not None:
        worker.terminate()
        worker.join()


if __name__ == "__main__":
    main()
