"""Faces as JPEG files, decoded by tf.data on two cores."""

import time

import numpy as np
import tensorflow as tf
from clock import Clock, arguments

args = arguments()
rng = np.random.default_rng(0)
small = tf.constant(rng.integers(0, 255, (40, 40, 3), np.uint8))
picture = tf.cast(tf.image.resize(small, (640, 640)), tf.uint8)
files = [tf.io.encode_jpeg(picture).numpy()] * 64


def decode(file):
    ratio = 4 if args.variant == "fixed" else 1
    image = tf.io.decode_jpeg(file, channels=3, ratio=ratio)
    return tf.image.resize(tf.cast(image, tf.float32), (160, 160))


data = (
    tf.data.Dataset.from_tensor_slices(files)
    .repeat()
    .map(decode, num_parallel_calls=2)
    .batch(8)
    .prefetch(2)
)
if args.variant == "free":
    data = data.take(1).cache().repeat()


clock = Clock(args)
for _batch in clock.over(data):
    time.sleep(0.006)  # the step on the accelerator
    clock.step()
    if not clock.running():
        break
clock.report()
