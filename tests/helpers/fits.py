"""Models that remember what fit() trained them on, and the runner that fed it."""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

import keras
import numpy as np
import pytest
from keras.src.trainers.epoch_iterator import EpochIterator

from fastfeed import FeedRunner
from fastfeed.sinks.keras_callbacks import StateCallback

EPOCH = 10  # batches
on_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="a Diary trains as TensorFlow does"
)
loses_none = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow" and not hasattr(EpochIterator, "reset"),
    reason="Keras before 3.7, given steps_per_epoch, builds models from a batch that it then loses",
)
# how fit() without steps_per_epoch learns of the end
NO_MORE = "ignore:Your input ran out of data:UserWarning"


def runner_of(broken: int | None = None, **options: Any) -> FeedRunner:
    """Records that say which they are, but for a broken one; nothing for which a worker would
    import this file."""

    def record(index: int) -> tuple[np.ndarray, np.ndarray]:
        if index == broken:
            raise ValueError("the disk is gone")
        return np.full(1, index, np.float32), np.zeros(1, np.float32)

    return FeedRunner(range(4 * EPOCH), transform=record, batch_size=4, **{"seed": 3, **options})


def stream(count: int, **options: Any) -> list[list[int]]:
    """The first batches of each epoch, without an interruption."""
    with runner_of(**options) as runner:
        every = chain.from_iterable(runner.epochs())
        return [batch[0].ravel().astype(int).tolist() for batch in islice(every, count)]


class Diary(keras.Model):
    """Remembers the records of each batch that it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[int]] = []
        self.layer = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.layer(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        self.seen.append(data[0].numpy().ravel().astype(int).tolist())
        return {"loss": 0.0}


def diary(steps_per_execution: int = 1) -> Diary:
    made = Diary()
    made.compile(run_eagerly=True, steps_per_execution=steps_per_execution)
    return made


def fit(model: Diary, feed: StateCallback, *callbacks: Any, **options: Any) -> list[list[int]]:
    """The batches that this training had."""
    before = len(model.seen)
    options = {"steps_per_epoch": EPOCH, "verbose": 0, "shuffle": False, **options}
    model.fit(feed.batches(), initial_epoch=feed.restore(), callbacks=[feed, *callbacks], **options)
    return model.seen[before:]
