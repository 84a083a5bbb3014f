"""Scans, by two processes through a queue."""

import multiprocessing
import time

import numpy as np
from clock import Clock, arguments

args = arguments()


def scans():
    count = 0
    while True:
        count += 1
        yield np.full((24, 384, 384), count, np.float32)


def scanner(batches):
    for batch in scans():
        batches.put(batch)


def main():
    clock = Clock(args)

    def loop(take):
        while clock.running():
            clock.asked()
            batch = take()
            clock.got()
            float(batch[0, 0, 0])
            time.sleep(0.008)  # the step on the accelerator
            clock.step()

    if args.variant == "slow":
        context = multiprocessing.get_context("spawn")
        batches = context.Queue(maxsize=4)
        workers = [context.Process(target=scanner, args=(batches,), daemon=True) for _ in range(2)]
        for worker in workers:
            worker.start()
        loop(batches.get)
        for worker in workers:
            worker.terminate()
            worker.join()
    if args.variant == "free":
        cached = next(scans())
        loop(lambda: cached)
    if args.variant == "fixed":
        from fastfeed import FeedRunner

        with FeedRunner(lambda worker: scans(), processes=2) as runner:
            stream = iter(runner)
            loop(lambda: next(stream))
    clock.report()


if __name__ == "__main__":
    main()
