"""Epochs that are one tf.function each, which loops over a dataset in its graph."""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
images = rng.normal(size=(102_400, 256)).astype(np.float32)
labels = rng.normal(size=(102_400, 16)).astype(np.float32)
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(5_000).batch(64)
model = tf.keras.Sequential([tf.keras.layers.Dense(512, "relu"), tf.keras.layers.Dense(16)])
model.build((None, 256))
rate = 0.01


@tf.function
def train_epoch():
    total = 0.0
    for x, y in dataset:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        slopes = tape.gradient(loss, model.trainable_variables)
        for variable, slope in zip(model.trainable_variables, slopes, strict=True):
            variable.assign_sub(rate * slope)
        total += loss
    return total


print("start", flush=True)
for epoch in range(10_000):
    print(epoch, float(train_epoch()), flush=True)
