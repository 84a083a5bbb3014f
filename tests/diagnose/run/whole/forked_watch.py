"""Forked children that train on marked batches, while the script waits for them."""

import multiprocessing

import fastfeed


def train() -> None:
    total = 0
    for i in fastfeed.watch(iter(int, 1)):  # for ever
        total += sum(range(20_000)) + i


if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=train) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
