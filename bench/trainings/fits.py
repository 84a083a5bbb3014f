"""The Keras network of the photographs, and a callback that ends `fit`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import keras

from bench.trainings.training import SEED, Progress


def network(progress: Progress, *, side: int, classes: int) -> keras.Model:
    """Return a compiled network from images (n, side, side, 3) uint8 to scores of classes.

    Its train function takes a batch before its step, so that the wait for it can be measured.
    """
    keras.utils.set_random_seed(SEED)
    pixels = keras.Input((side, side, 3), dtype="uint8")
    found = keras.layers.Rescaling(1 / 127.5, offset=-1.0)(pixels)
    for filters in (16, 32, 64):
        found = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(found)
        found = keras.layers.BatchNormalization(momentum=0.9)(found)
        found = keras.layers.MaxPooling2D()(keras.layers.ReLU()(found))
    scores = keras.layers.Dense(classes)(keras.layers.Flatten()(found))
    model = keras.Model(pixels, scores)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss)
    model.make_train_function()
    step = model.train_function

    def train(batches: Iterator[Any]) -> Any:
        began_s = time.perf_counter()
        batch = next(batches)
        progress.waited(time.perf_counter() - began_s)
        return step(iter([batch]))

    model.train_function = train
    return model


class Until(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Ends `fit` when the progress of the run is over."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Make the next loss that of one batch."""
        self.model.reset_metrics()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Report the loss of a batch."""
        if self._progress.over(logs["loss"]):
            self.model.stop_training = True
