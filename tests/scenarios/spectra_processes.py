"""Spectra of sounds, whitened by processes."""

import multiprocessing
import os
import sys
import time

from clock import Clock, arguments

args = arguments()
os.environ["OPENBLAS_NUM_THREADS"] = "1" if args.variant == "fixed" else "8"
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"]
import numpy as np  # noqa: E402


def whitened(seed):
    x = np.random.default_rng(seed).standard_normal((160, 160))
    for _ in range(6):
        x = x @ x.T
        x /= np.abs(x).max()
    return x.astype(np.float32)


def work(seed, batches):
    try:
        while True:
            batches.put(whitened(seed))
            seed += 1
    except KeyboardInterrupt:
        sys.exit()


def main():
    context = multiprocessing.get_context("spawn")
    batches = context.Queue(maxsize=8)
    count = {"slow": 6, "fixed": 2, "free": 0}[args.variant]
    workers = [
        context.Process(target=work, args=(seed, batches), daemon=True) for seed in range(count)
    ]
    for worker in workers:
        worker.start()
    cached = whitened(0)
    clock = Clock(args)
    while clock.running():
        clock.asked()
        batch = cached if args.variant == "free" else batches.get()  # noqa: F841
        clock.got()
        time.sleep(0.004)  # the step on the accelerator
        clock.step()
    clock.report()
    for worker in workers:
        worker.terminate()
        worker.join()


if __name__ == "__main__":
    main()
