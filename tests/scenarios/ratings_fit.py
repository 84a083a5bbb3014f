"""Ratings of films; every batch is written into a journal."""

import json

import keras
import numpy as np
from clock import Clock, arguments

args = arguments()
rng = np.random.default_rng(0)
rows = 8 if args.variant == "free" else 4096
x = rng.random((rows, 24), dtype=np.float32)
y = rng.random((rows, 1), dtype=np.float32)
model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
model.compile("sgd", "mse")


class Journal(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.entries = []

    def on_train_batch_end(self, batch, logs=None):
        weights = [w.tolist() for w in self.model.get_weights()]
        self.entries = [*self.entries[-59:], {"batch": batch, "logs": logs, "weights": weights}]
        self.text = json.dumps(self.entries)


clock = Clock(args)
callbacks = [clock.timing()] if args.variant == "fixed" else [Journal(), clock.timing()]
if args.variant == "free":
    import tensorflow as tf

    model.fit(
        tf.data.Dataset.from_tensors((x, y)).repeat(),
        steps_per_epoch=512,
        epochs=999,
        callbacks=callbacks,
        verbose=0,
    )
else:
    model.fit(x, y, batch_size=8, epochs=999, callbacks=callbacks, verbose=0)
clock.report()
