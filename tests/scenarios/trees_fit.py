"""Trees in a forest, by a network that is computed on the cores."""

import os

import keras
import neighbour
import numpy as np
import tensorflow as tf
from clock import Clock, arguments

args = arguments()
if args.variant != "fixed":
    neighbour.moves_in(os.getpid())
rng = np.random.default_rng(0)
x = rng.random((3200, 512), dtype=np.float32)
y = rng.integers(0, 10, 3200)
data = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(64).prefetch(4)
if args.variant == "free":
    data = tf.data.Dataset.from_tensors((x[:64], y[:64])).repeat()
layers = [keras.layers.Dense(n, activation="relu") for n in (1536, 1024)]
model = keras.Sequential([*layers, keras.layers.Dense(10)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))


clock = Clock(args)
model.fit(data, epochs=1000, steps_per_epoch=500, callbacks=[clock.timing()], verbose=0)
clock.report()
