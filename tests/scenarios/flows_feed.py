"""Flows of a river, fed to a session."""

import numpy as np
import tensorflow as tf
from clock import Clock, arguments

args = arguments()
v1 = tf.compat.v1
v1.disable_eager_execution()
history = np.random.default_rng(0).standard_normal((2, 512, 4096))
batches = [list(day) for day in history]  # rows of float64, as the gauges give them
if args.variant == "fixed":
    batches = [day.astype(np.float32) for day in history]

x_in = v1.placeholder(tf.float32, (512, 4096))
x = v1.Variable(tf.zeros((512, 4096)), trainable=False) if args.variant == "free" else x_in
w = v1.Variable(tf.random.normal((4096, 4), stddev=0.02))
loss = tf.reduce_mean(tf.square(x @ w - 1.0))
train_op = v1.train.GradientDescentOptimizer(1e-4).minimize(loss)

with v1.Session() as session:
    session.run(v1.global_variables_initializer())
    clock, number = Clock(args), 0
    while clock.running():
        if args.variant == "free":
            session.run(train_op)
        elif args.variant == "seen":
            clock.asked()
            batch = np.asarray(batches[number % 2], np.float32)
            clock.got()
            session.run(train_op, feed_dict={x_in: batch})
        else:
            session.run(train_op, feed_dict={x_in: batches[number % 2]})
        clock.step()
        number += 1
    clock.report()
