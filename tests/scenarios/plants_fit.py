"""Plants, by Keras from a generator that reads every batch from a store."""

import time

import keras
import numpy as np
import tensorflow as tf
from clock import Clock, arguments

args = arguments()
rng = np.random.default_rng(0)


def plants():
    while True:
        time.sleep(0.04)
        yield rng.random((32, 256), dtype=np.float32), rng.integers(0, 10, 32)


model = keras.Sequential(
    [keras.layers.Dense(1024, activation="relu"), keras.layers.Dense(1024), keras.layers.Dense(10)]
)
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))


def fit(data):
    model.fit(data, epochs=1000, steps_per_epoch=200, callbacks=[clock.timing()], verbose=0)


clock = Clock(args)
clock.fits(model)
if args.variant == "fixed":
    from fastfeed import FeedRunner

    with FeedRunner(plants, threads=8) as runner:
        fit(runner.dataset())
else:
    fit(
        tf.data.Dataset.from_tensors(next(plants())).repeat()
        if args.variant == "free"
        else plants()
    )
clock.report()
