"""Leaves of trees; every part of an epoch ends with a look at the validation set."""

import keras
import numpy as np
import tensorflow as tf
from clock import Clock, arguments

args = arguments()
rng = np.random.default_rng(0)
x = rng.random((3200, 512), dtype=np.float32)
y = rng.integers(0, 10, 3200)
data = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(32).prefetch(4)
if args.variant == "free":
    data = tf.data.Dataset.from_tensors((x[:32], y[:32])).repeat()
layers = [keras.layers.Dense(n, activation="relu") for n in (1536, 1024)]
model = keras.Sequential([*layers, keras.layers.Dense(10)])
model.compile(
    "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
)
every = 1000 if args.variant == "fixed" else 50


class Validation(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if self.batches % every == 0:
            guesses = [self.model(x[i : i + 64], training=False) for i in range(0, 3200, 64)]
            self.accuracy = float(np.mean(np.argmax(np.concatenate(guesses), 1) == y))


clock = Clock(args)
model.fit(
    data, epochs=1000, steps_per_epoch=500, callbacks=[Validation(), clock.timing()], verbose=0
)
clock.report()
