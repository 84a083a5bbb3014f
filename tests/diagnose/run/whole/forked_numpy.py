"""Forked processes that train in numpy, each on its own share of the rows."""

import multiprocessing

import numpy as np


def make_batch(rng):
    rows = rng.normal(size=(256, 128))
    return np.sort(rows, axis=1), rows.sum(1)


def train(rank):
    rng = np.random.default_rng(rank)
    weights = np.zeros(128)
    for _ in range(10_000_000):
        x, y = make_batch(rng)
        slope = x.T @ (x @ weights - y) / len(y)
        weights = weights - 0.001 * slope


if __name__ == "__main__":
    workers = [
        multiprocessing.get_context("fork").Process(target=train, args=(rank,)) for rank in range(2)
    ]
    print("start", flush=True)
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
