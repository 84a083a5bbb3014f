"""Processes that train, each on its own rows, and put their results into a queue."""

import multiprocessing

import numpy as np


def make_batch(rng):
    rows = rng.normal(size=(256, 128))
    return np.sort(rows, axis=1), rows.sum(1)


def train(rank, results):
    rng = np.random.default_rng(rank)
    weights = np.zeros(128)
    for i in range(10_000_000):
        x, y = make_batch(rng)
        slope = x.T @ (x @ weights - y) / len(y)
        weights = weights - 0.001 * slope
        if i % 50 == 0:
            results.put(float(np.abs(slope).mean()))


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    workers = [context.Process(target=train, args=(rank, results)) for rank in range(2)]
    print("start", flush=True)
    for worker in workers:
        worker.start()
    seen = []
    while True:
        result = results.get()
        if result is not None:
            seen.append(result)
