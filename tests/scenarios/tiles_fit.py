"""Tiles of a map, classified by a small convolutional network."""

import keras
import numpy as np
import tensorflow as tf
from clock import Clock, arguments

args = arguments()
rng = np.random.default_rng(0)
x = rng.random((640, 32, 32, 3), dtype=np.float32)
y = rng.integers(0, 10, 640)
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(640).repeat().batch(32).prefetch(4)
if args.variant == "free":
    data = tf.data.Dataset.from_tensors((x[:32], y[:32])).repeat()
if args.variant == "fixed":
    data = data.prefetch(tf.data.AUTOTUNE)

model = keras.Sequential(
    [
        keras.layers.Conv2D(48, 3, activation="relu"),
        keras.layers.Conv2D(48, 3, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(10),
    ]
)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))


clock = Clock(args)
model.fit(data, epochs=1000, steps_per_epoch=100, callbacks=[clock.timing()], verbose=0)
clock.report()
