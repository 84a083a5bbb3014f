"""Cells under a microscope, by a PyDataset whose workers read them from a store."""

import time

import keras
import numpy as np
import tensorflow as tf
from clock import Clock, arguments

args = arguments()


class Cells(keras.utils.PyDataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        time.sleep(0.06)
        rng = np.random.default_rng(index)
        return rng.random((32, 256), dtype=np.float32), rng.integers(0, 10, 32)


model = keras.Sequential(
    [keras.layers.Dense(1024, activation="relu"), keras.layers.Dense(1024), keras.layers.Dense(10)]
)
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))


data = Cells(workers=10 if args.variant == "fixed" else 2, max_queue_size=20)
steps = None
if args.variant == "free":
    data, steps = tf.data.Dataset.from_tensors(data[0]).repeat(), 400
clock = Clock(args)
clock.fits(model)
model.fit(data, epochs=1000, steps_per_epoch=steps, callbacks=[clock.timing()], verbose=0)
clock.report()
