"""Segments of a recording through tf.data into a loop with GradientTape."""

import time

import numpy as np
import tensorflow as tf
from clock import Clock, arguments

args = arguments()
rng = np.random.default_rng(0)


def segments():
    while True:
        time.sleep(0.006)
        yield rng.standard_normal((48, 512), dtype=np.float32)


spec = tf.TensorSpec((48, 512), tf.float32)
if args.variant == "free":
    data = tf.data.Dataset.from_tensors(next(segments())).repeat()
elif args.variant == "fixed":
    from fastfeed import FeedRunner

    data = FeedRunner(segments).dataset()
else:
    data = tf.data.Dataset.from_generator(segments, output_signature=spec).prefetch(4)
weights = [
    tf.Variable(tf.random.normal(s, stddev=0.02)) for s in ((512, 2048), (2048, 2048), (2048, 64))
]


@tf.function
def train(x):
    with tf.GradientTape() as tape:
        h = x
        for w in weights:
            h = tf.nn.relu(h @ w)
        loss = tf.reduce_mean(tf.square(h - 1.0))
    for w, g in zip(weights, tape.gradient(loss, weights), strict=True):
        w.assign_sub(1e-4 * g)
    return loss


clock = Clock(args)
for x in clock.over(data):
    loss = train(x)
    float(loss)
    clock.step()
    if not clock.running():
        break
clock.report()
