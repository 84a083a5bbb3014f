"""Keras on TensorFlow: batches, models with random numbers, and what their training leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
if keras.backend.backend() != "tensorflow":
    pytest.skip("of the TensorFlow backend", allow_module_level=True)
# Keras says so at the end of a dataset whose length it does not know.
NO_MORE = pytest.mark.filterwarnings("ignore:Your input ran out of data")
SPEC = (tf.TensorSpec((None, 3), tf.float32), tf.TensorSpec((None, 1), tf.float32))


def batch(i: int) -> Any:
    return np.full((4, 3), i, np.float32), np.full((4, 1), i, np.float32)


def shuffled(batches: int) -> Any:
    """Return a dataset of these batches, in an order that is drawn."""
    return tf.data.Dataset.from_generator(
        lambda: (batch(i) for i in range(batches)), output_signature=SPEC
    ).shuffle(batches)


def on_demand(make: Callable[[], Iterator[Any]]) -> Any:
    """Return a dataset without the prefetch that TensorFlow adds."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return tf.data.Dataset.from_generator(make, output_signature=SPEC).with_options(options)


def model_of(**options: Any) -> Any:
    keras.utils.set_random_seed(11)
    layers = [
        keras.layers.Input((3,)),
        keras.layers.Dense(4),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential(layers)
    model.compile("adam", "mse", **options)
    return model


def trained(model: Any, **options: Any) -> list[bytes]:
    """The losses of all epochs and the weights behind them; the random numbers that come next."""
    history = model.fit(**options, verbose=0)
    numbers = [tf.random.normal((2,)).numpy(), np.random.random(2)]
    return [
        np.array(one).tobytes()
        for one in (*history.history["loss"], *model.get_weights(), *numbers)
    ]
