"""Records/s of MNIST as arrays: fastfeed, tf.data and DataLoader in turn; and of a cache.

python -m bench.arrays --rounds 5 --output bench/results/arrays.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from fastfeed import FeedRunner

RECORDS, BATCH, EPOCHS = 60_000, 128, 3
NUMBERS = range(RECORDS)
IMAGES = np.random.default_rng(0).integers(0, 256, (RECORDS, 28, 28), np.uint8)
LABELS = np.arange(RECORDS) % 10


def of_tf_data(_: ExitStack) -> Iterable[Any]:
    """The pipeline of the tutorial."""
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS))
    return data.shuffle(RECORDS).batch(BATCH).prefetch(tf.data.AUTOTUNE)


def of_torch(_: ExitStack) -> Iterable[Any]:
    """The pipeline of the tutorial: no workers, which is the fastest setting for ready tensors."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.from_numpy(IMAGES), torch.from_numpy(LABELS))
    return DataLoader(data, batch_size=BATCH, shuffle=True)


def one_by_one(index: int) -> Any:
    """Return a ready record."""
    return IMAGES[index], LABELS[index]


def rate(batches: Iterable[Any]) -> float:
    """Return the records/s of three epochs in a plain loop, after one in which workers start and
    caches are filled."""
    for _ in batches:
        pass
    start_s, records = time.perf_counter(), 0
    for _ in range(EPOCHS):
        for _, labels in batches:
            records += len(labels)
    return records / (time.perf_counter() - start_s)


def feed(source: Any, **options: Any) -> Callable[[ExitStack], Iterable[Any]]:
    """Return a function that opens a runner."""
    options = {"batch_size": BATCH, "shuffle": True, **options}
    return lambda stack: stack.enter_context(FeedRunner(source, **options))


def cached_in_folder(stack: ExitStack) -> Iterable[Any]:
    """A cache in a folder that is deleted afterwards."""
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    return feed(NUMBERS, transform=one_by_one, cache=folder)(stack)


PIPELINES: dict[str, Callable[[ExitStack], Iterable[Any]]] = {
    "fastfeed, arrays": feed((IMAGES, LABELS)),
    "fastfeed, arrays, 2 threads": feed((IMAGES, LABELS), threads=2),
    "fastfeed, arrays, 2 processes": feed((IMAGES, LABELS), processes=2),
    'fastfeed, cache="ram"': feed(NUMBERS, transform=one_by_one, cache="ram"),
    "fastfeed, cache in a folder": cached_in_folder,
    "fastfeed, ready records one by one": feed(NUMBERS, transform=one_by_one),
    "tf.data from_tensor_slices": of_tf_data,
    "DataLoader of a TensorDataset": of_torch,
}


def main() -> None:
    """Print a table, and write all rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rates: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name, make in PIPELINES.items():
            with ExitStack() as stack:  # one at a time: a feed makes the next epoch in advance
                try:
                    rates.setdefault(name, []).append(rate(make(stack)))
                except ImportError as error:
                    print(f"left out: {name} ({error})")
    print(table(rates))
    if options.output is not None:
        options.output.write_text(json.dumps(rates, indent=1) + "\n")


def table(rates: dict[str, list[float]]) -> str:
    """Return the medians, with the lowest and the highest."""
    lines = ["| pipeline | records/s | lowest to highest |", "|---|--:|--:|"]
    for name, found in rates.items():
        middle = statistics.median(found)
        lines.append(f"| {name} | {middle:,.0f} | {min(found):,.0f} to {max(found):,.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
