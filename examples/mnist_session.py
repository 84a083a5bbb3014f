"""Train a small CNN on handwritten digits in a TensorFlow 1 session, fed by producer threads.

    python examples/mnist_session.py --sleep 0.05 --threads 1     # 50 ms for each batch
    python examples/mnist_session.py --sleep 0.05 --threads 16    # the same work in parallel

The producers deliver every record exactly once in an epoch, which has as many steps as its records
fill. The queue shuffles across epochs: of its up to 2000 records, the last of one epoch are trained
on early in the next one.

The layers are written with `get_variable` and `tf.nn`, because `tf.layers` came from Keras 2.
"""

import math
import sys
import time
from itertools import pairwise

import numpy as np
import tensorflow as tf
from mnist_options import options
from tqdm import tqdm

from fastfeed import FeedRunner, MissingExtra, OptionError
from fastfeed.benchmark import digits

tf1 = tf.compat.v1


def network(images, *, training):
    """Return the scores (B, 10) of images (B, 28, 28): four convolutions, three of them pooled, and
    two dense layers. The network of the training is built first, the other one has its weights."""
    x = tf.cast(images, tf.float32)[..., tf.newaxis] / 255
    with tf1.variable_scope("cnn", reuse=not training):
        for number, filters in enumerate((4, 8, 8, 8)):
            with tf1.variable_scope(f"conv{number}"):
                kernel = tf1.get_variable("kernel", (3, 3, x.shape[-1], filters))
                x = tf.nn.conv2d(x, kernel, strides=1, padding="SAME")
                x = tf.nn.relu(normalised(x, training=training))
            if number < 3:
                x = tf.nn.max_pool2d(x, 2, 2, "VALID")
        x = tf.reshape(x, (-1, math.prod(x.shape[1:])))
        return dense(tf.nn.relu(dense(x, 64, scope="hidden")), 10, scope="classes")


def dense(x, units, *, scope):
    with tf1.variable_scope(scope):
        kernel = tf1.get_variable("kernel", (x.shape[-1], units))
        bias = tf1.get_variable("bias", (units,), initializer=tf1.zeros_initializer())
        return tf.matmul(x, kernel) + bias


def normalised(x, *, training, momentum=0.9):
    """Normalise by the batch and update the moving averages; outside the training, by these."""
    zeros, ones, size = tf1.zeros_initializer(), tf1.ones_initializer(), x.shape[-1:]
    gamma = tf1.get_variable("gamma", size, initializer=ones)
    beta = tf1.get_variable("beta", size, initializer=zeros)
    mean = tf1.get_variable("moving_mean", size, initializer=zeros, trainable=False)
    variance = tf1.get_variable("moving_variance", size, initializer=ones, trainable=False)
    if not training:
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-3)
    y, *now = tf1.nn.fused_batch_norm(x, gamma, beta, epsilon=1e-3)
    for moving, batch in zip((mean, variance), now, strict=True):
        update = tf1.assign_sub(moving, (moving - batch) * (1 - momentum))
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
    return y


def train_step(images, labels):
    """Return the tensors of a step: its op, the loss and the accuracy of the batch."""
    scores = network(images, training=True)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores))
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(scores, axis=1), labels), tf.float32))
    with tf.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
        return tf1.train.AdamOptimizer(1e-4).minimize(loss), loss, accuracy


def main():
    args = options(__doc__)
    data = digits.load(args.data)
    print(data.origin)
    runner = FeedRunner(
        lambda worker: batches(data, args, worker),
        threads=args.threads,
        batch_size=args.batch_size,
        epochs=args.epochs,
    )
    with tf.Graph().as_default(), runner:
        step = train_step(*runner.get_inputs())
        images = tf1.placeholder(tf.uint8, (None, 28, 28))
        found = tf.argmax(network(images, training=False), axis=1)
        writer = args.logdir and tf1.summary.FileWriter(args.logdir, tf1.get_default_graph())
        with tf1.Session() as sess:
            sess.run(tf1.global_variables_initializer())
            runner.start(sess)
            for epoch, steps in enumerate(steps_of_epochs(len(data.x_train), args), start=1):
                before = runner.snapshot()
                train(sess, step, tqdm(steps, f"epoch {epoch}", unit="step"), writer)
                fed = runner.snapshot() - before
                pieces = np.array_split(data.x_test, -(-len(data.x_test) // 1000))
                right = np.concatenate([sess.run(found, {images: piece}) for piece in pieces])
                accuracy = np.mean(right == data.y_test)
                record(writer, steps.stop, test_accuracy=accuracy, starvation=fed.starvation)
                print(
                    f"epoch {epoch}: test accuracy {accuracy:.4f}, {fed.batches_per_second:.0f} "
                    f"steps/s, waited for input {fed.starvation:.1%} of the time"
                )


def batches(data, args, worker):
    """Yield one epoch of this producer's share, in a new order: (images, labels) of up to
    `--batch-size` records."""
    share = worker.rng.permutation(np.arange(worker.index, len(data.x_train), worker.count))
    for start in range(0, len(share), args.batch_size):
        chosen = share[start : start + args.batch_size]
        time.sleep(args.sleep)  # pretend preprocessing
        yield data.x_train[chosen], data.y_train[chosen]


def steps_of_epochs(records, args):
    """Return the step numbers of each epoch, as ranges; together they have all records `--epochs`
    times, in whole batches."""
    ends = [min(epoch * records // args.batch_size, args.steps) for epoch in range(args.epochs + 1)]
    return [range(start, end) for start, end in pairwise(ends) if start < end]


def train(sess, step, bar, writer):
    """Run the steps of one epoch; the progress bar shows running means."""
    mean = None
    for number in bar:
        _, *now = sess.run(step)
        mean = np.array(now) if mean is None else 0.98 * mean + 0.02 * np.array(now)
        bar.set_postfix(loss=f"{mean[0]:.3f}", accuracy=f"{mean[1]:.3f}", refresh=False)
        record(writer, number, loss=now[0], accuracy=now[1])


def record(writer, step, **values):
    """Write `values` for TensorBoard, if there is a writer."""
    if writer:
        pairs = [tf1.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        writer.add_summary(tf1.Summary(value=pairs), step)


if __name__ == "__main__":
    try:
        main()
    except (OptionError, MissingExtra) as error:  # of an argument, and its way out
        sys.exit(str(error))
