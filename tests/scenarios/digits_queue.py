"""Digits, from a queue that shuffles."""

import threading

import numpy as np
import tensorflow as tf
from clock import Clock, arguments

args = arguments()
v1 = tf.compat.v1
v1.disable_eager_execution()
images = np.random.default_rng(0).integers(0, 255, (5000, 784), np.uint8)

x_in = v1.placeholder(tf.float32, (None, 784))
queue = tf.queue.RandomShuffleQueue(2000, 500, [tf.float32], shapes=[(784,)])
enqueue = queue.enqueue_many([x_in])
x = (
    tf.constant(images[:64] / 255.0, tf.float32)
    if args.variant == "free"
    else queue.dequeue_many(64)
)
h = x
for width in (2048, 1536, 1024):
    h = tf.nn.relu(h @ v1.Variable(tf.random.normal((h.shape[1], width), stddev=0.02)))
loss = tf.reduce_mean(tf.square(h))
train_op = v1.train.GradientDescentOptimizer(1e-4).minimize(loss)


def feed(session, seed):
    rng = np.random.default_rng(seed)
    try:
        while True:
            rows = rng.integers(0, len(images), 64)
            session.run(enqueue, {x_in: images[rows] / np.float32(255)})
    except tf.errors.CancelledError:
        return


with v1.Session() as session:
    session.run(v1.global_variables_initializer())
    if args.variant != "free":
        for seed in range(2 if args.variant == "slow" else 4):
            threading.Thread(target=feed, args=(session, seed), daemon=True).start()
    clock = Clock(args)
    while clock.running():
        session.run(train_op)
        clock.step()
    clock.report()
    session.run(queue.close(cancel_pending_enqueues=True))
