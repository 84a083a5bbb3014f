"""Levels of wells, shuffled by tf.data in every epoch."""

import time

import keras
import numpy as np
import tensorflow as tf
from clock import Clock, arguments

args = arguments()
rng = np.random.default_rng(0)
STEPS = 60


def wells():
    for start in range(0, STEPS * 32, 32):
        time.sleep(0.006)
        yield x[start : start + 32], y[start : start + 32]


x = rng.random((STEPS * 32, 512), dtype=np.float32)
y = rng.integers(0, 10, STEPS * 32)
specs = (tf.TensorSpec((None, 512), tf.float32), tf.TensorSpec((None,), tf.int64))
data = tf.data.Dataset.from_generator(wells, output_signature=specs)
if args.variant in ("slow", "seen"):
    data, steps = data.shuffle(STEPS).prefetch(2), None
if args.variant == "fixed":
    data, steps = data.shuffle(STEPS).repeat().prefetch(STEPS), STEPS
if args.variant == "free":
    data, steps = tf.data.Dataset.from_tensors((x[:32], y[:32])).repeat(), STEPS

layers = [keras.layers.Dense(n, activation="relu") for n in (1024, 1024)]
model = keras.Sequential([*layers, keras.layers.Dense(10)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))


clock = Clock(args)
clock.fits(model)
model.fit(data, epochs=1000, steps_per_epoch=steps, callbacks=[clock.timing()], verbose=0)
clock.report()
