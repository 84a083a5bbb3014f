"""Molecules as strings, by a PyDataset with two workers."""

import keras
import numpy as np
import tensorflow as tf
from clock import Clock, arguments

args = arguments()
NAMES = [
    "CC(=O)OC1=CC=CC=C1C(=O)O",
    "CN1C=NC2=C1C(=O)N(C(=O)N2C)C",
    "CC(C)CC1=CC=C(C=C1)C(C)C(=O)O",
] * 40


def fingerprint(name):
    bits = [0.0] * 256
    for size in range(1, 7):
        for start in range(len(name) - size):
            key = 5381
            for letter in name[start : start + size]:
                key = (key * 33 + ord(letter)) % 256
            bits[key] = 1.0
    return bits


def batch(seed):
    return np.array([fingerprint(n) for n in NAMES], np.float32), np.arange(len(NAMES)) % 10


class Molecules(keras.utils.PyDataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        return batch(index)


def stream():
    while True:
        yield batch(0)


model = keras.Sequential([keras.layers.Dense(256, activation="relu"), keras.layers.Dense(10)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))


def fit(data, steps=400):
    model.fit(data, epochs=1000, steps_per_epoch=steps, callbacks=[clock.timing()], verbose=0)


clock = Clock(args)
clock.fits(model)
if args.variant in ("slow", "seen"):
    fit(Molecules(workers=2, max_queue_size=10), None)
if args.variant == "free":
    fit(tf.data.Dataset.from_tensors(batch(0)).repeat())
if args.variant == "fixed":
    from fastfeed import FeedRunner

    with FeedRunner(stream, processes=2) as runner:
        fit(runner.dataset())
clock.report()
