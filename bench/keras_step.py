"""A Keras training step of a few milliseconds, timed alone or beside a peer's producers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import repeat
from typing import Any

import numpy as np

from bench.peers import PEERS
from bench.workloads import Batch, Work, from_json

CACHED = "step alone"
CACHED_WAITING = "step alone, waiting in between"


def times(cell: dict[str, Any]) -> list[float]:
    """Seconds of each step, from the batch in hand to the step's end."""
    work, name = from_json(cell["work"]), cell["peer"]
    step = _step(work)
    opened = nullcontext(_cached(work, name)) if name in (CACHED, CACHED_WAITING) else None
    with opened or PEERS[name].open(work, cell["workers"]) as batches:
        _run(batches, step, seconds=cell["warm_s"], least=20)
        return _run(batches, step, seconds=cell["seconds"], least=30)


def _cached(work: Work, name: str) -> Iterator[Batch]:
    """Repeat one batch.

    After a wait the cores run slower and their caches are cold; no library is to blame for that.
    """
    batch = work.batch(0)
    for _ in repeat(None):
        if name == CACHED_WAITING:
            time.sleep(0.01)
        yield batch


def _run(
    batches: Iterator[Batch], step: Callable[[Any], None], *, seconds: float, least: int
) -> list[float]:
    taken: list[float] = []
    end = time.perf_counter() + seconds
    for (images,) in batches:
        start = time.perf_counter()
        step(images)
        taken.append(time.perf_counter() - start)
        if len(taken) >= least and time.perf_counter() >= end:
            break
    return taken


def model_of(work: Work) -> Any:
    """A small convolutional network, compiled."""
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input(work.shape[1:], dtype=work.dtype),
            layers.Rescaling(1 / 255),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def _step(work: Work) -> Callable[[Any], None]:
    model = model_of(work)
    labels = np.zeros(work.shape[0], np.int32)
    return lambda images: model.train_on_batch(images, labels)
