"""Clicks of visitors, four at a time, eagerly."""

import numpy as np
import tensorflow as tf
from clock import Clock, arguments

args = arguments()
rng = np.random.default_rng(0)
x = rng.standard_normal((4000, 16), dtype=np.float32)
y = rng.standard_normal((4000, 1), dtype=np.float32)
data = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(4).prefetch(8)
if args.variant == "free":
    data = tf.data.Dataset.from_tensors((x[:4], y[:4])).repeat()
shapes = [(16, 32), (32, 32), (32, 32), (32, 32), (32, 1)]
weights = [tf.Variable(tf.random.normal(s, stddev=0.1)) for s in shapes]
optimizer = tf.keras.optimizers.Adam(1e-3)


def train(a, b):
    with tf.GradientTape() as tape:
        for w in weights:
            a = tf.nn.tanh(a @ w)
        loss = tf.reduce_mean(tf.square(a - b))
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
    return loss


if args.variant == "fixed":
    train = tf.function(train)
total = 0.0
clock = Clock(args)
for a, b in clock.over(data):
    total += float(train(a, b))
    clock.step()
    if not clock.running():
        break
clock.report()
