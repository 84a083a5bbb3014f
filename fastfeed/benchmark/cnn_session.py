"""A small convolutional network as a graph of TensorFlow 1, trained by the sessions of benchmarks.

Four times a 3 x 3 convolution (4, 8, 8, 8 filters), batch normalisation, ReLU and 2 x 2 pooling; 64
hidden units; softmax; Adam. Written with `get_variable`, because `tf.compat.v1.layers` no longer
exists. `cnn_keras.model` is the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fastfeed.benchmark.cnn_keras import FILTERS, HIDDEN, MOMENTUM
from fastfeed.errors import MissingExtra

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtra("tensorflow", "tensorflow-cpu") from error

tf1 = tf.compat.v1
EPSILON = 1e-3


@dataclass(frozen=True)
class TrainStep:
    """The tensors to fetch for one training step: its op, the batch's mean loss and accuracy
    (0..1)."""

    train_op: Any
    loss: Any
    accuracy: Any


def logits(images: Any, *, classes: int = 10) -> Any:
    """Return (B, classes) float32 for `images` of shape (B, H, W) or (B, H, W, C); B may be
    unknown, H and W are at least 8.

    uint8 becomes 0..1 on the device, so that batches stay small on their way; every other dtype
    keeps its values. It normalises by the batch, and adds the updates of the moving averages to
    UPDATE_OPS.
    """
    with tf1.variable_scope("cnn"):
        x = _pixels(images)
        for index, filters in enumerate(FILTERS):
            with tf1.variable_scope(f"conv{index}"):
                # no bias, which the normalisation would remove
                kernel = tf1.get_variable("kernel", (3, 3, x.shape[-1], filters))
                x = tf.nn.conv2d(x, kernel, strides=1, padding="SAME")
                x = tf.nn.relu(_normalised(x))
            if min(x.shape[1:3]) >= 4:  # pooling MNIST down to one pixel lost 1 %, saved no time
                x = tf.nn.max_pool2d(x, 2, 2, "VALID")
        x = tf.reshape(x, (-1, math.prod(x.shape[1:])))
        x = tf.nn.relu(_dense(x, HIDDEN, scope="hidden"))
        return _dense(x, classes, scope="classes")


def train_step(
    images: Any, labels: Any, *, learning_rate: float = 1e-4, classes: int = 10
) -> TrainStep:
    """Add the network and its training to the graph; `labels` (B,) are integers, one class for each
    of `images`."""
    scores = logits(images, classes=classes)
    loss = _loss(scores, labels)
    with tf.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
        train_op = tf1.train.AdamOptimizer(learning_rate).minimize(
            loss, tf1.train.get_or_create_global_step()
        )
    return TrainStep(train_op, loss, tf.reduce_mean(tf.cast(_right(scores, labels), tf.float32)))


def _pixels(images: Any) -> Any:
    """Return (B, H, W, C) float32."""
    x = tf.convert_to_tensor(images)
    x = tf.cast(x, tf.float32) * (1 / 255 if x.dtype == tf.uint8 else 1.0)
    return x if x.shape.rank == 4 else tf.expand_dims(x, -1)


def _normalised(x: Any) -> Any:
    zeros, ones = tf1.zeros_initializer(), tf1.ones_initializer()
    gamma, beta, mean, variance = (
        tf1.get_variable(name, (x.shape[-1],), initializer=first, trainable=trained)
        for name, first, trained in (
            ("gamma", ones, True),
            ("beta", zeros, True),
            ("moving_mean", zeros, False),
            ("moving_variance", ones, False),
        )
    )
    y, *batch = tf1.nn.fused_batch_norm(x, gamma, beta, epsilon=EPSILON)
    for moving, now in zip((mean, variance), batch, strict=True):
        update = tf1.assign_sub(moving, (moving - now) * (1 - MOMENTUM))
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
    return y


def _dense(x: Any, units: int, *, scope: str) -> Any:
    with tf1.variable_scope(scope):
        kernel = tf1.get_variable("kernel", (x.shape[-1], units))
        bias = tf1.get_variable("bias", (units,), initializer=tf1.zeros_initializer())
        return tf.nn.bias_add(tf.matmul(x, kernel), bias)


def _loss(scores: Any, labels: Any) -> Any:
    sparse = tf.cast(labels, tf.int64)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(sparse, scores))


def _right(scores: Any, labels: Any) -> Any:
    return tf.equal(tf.argmax(scores, axis=-1), tf.cast(labels, tf.int64))
