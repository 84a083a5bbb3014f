"""Trips of taxis, through a queue of TensorFlow."""

import signal
import threading

import tensorflow as tf
from clock import Clock, arguments

args = arguments()
signal.alarm(int(args.seconds) + 40)
v1 = tf.compat.v1
v1.disable_eager_execution()
LINES = (
    ["12.5,3,4,0.7"] * 20_000
    + (["12.5,3,,0.7"] if args.variant == "slow" else ["1,2,3,4"])
    + ["9,9,9,9"] * 63
)

x_in = v1.placeholder(tf.float32, (None, 4))
queue = tf.queue.RandomShuffleQueue(4000, 500, [tf.float32], shapes=[(4,)])
enqueue = queue.enqueue_many([x_in])
x = tf.zeros((64, 4)) if args.variant == "free" else queue.dequeue_many(64)
h = x
for width in (2048, 1024, 1024, 1):
    h = tf.nn.relu(h @ v1.Variable(tf.random.normal((h.shape[1], width), stddev=0.02)))
loss = tf.reduce_mean(tf.square(h - 1.0))
train_op = v1.train.GradientDescentOptimizer(1e-4).minimize(loss)


def feed(session):
    try:
        while True:
            for start in range(0, len(LINES) - 63, 64):
                rows = [
                    [float(field) for field in line.split(",")]
                    for line in LINES[start : start + 64]
                ]
                session.run(enqueue, {x_in: rows})
    except tf.errors.CancelledError:
        return


with v1.Session() as session:
    session.run(v1.global_variables_initializer())
    if args.variant != "free":
        threading.Thread(target=feed, args=(session,), daemon=True).start()
    clock = Clock(args)
    while clock.running():
        session.run(train_op)
        clock.step()
    clock.report()
    session.run(queue.close(cancel_pending_enqueues=True))
