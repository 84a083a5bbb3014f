"""Positions of chess games, read from their notation, through a queue of TensorFlow."""

import threading

import numpy as np
import tensorflow as tf
from clock import Clock, arguments

args = arguments()
v1 = tf.compat.v1
v1.disable_eager_execution()
BOARDS = [
    "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR",
    "r1bqkbnr/pppp1ppp/2n5/4p3/2B1P3/5Q2/PPPP1PPP/RNB1K1NR",
] * 64
PIECES = "PNBRQKpnbrqk"


def positions():
    while True:
        rows = []
        for board in BOARDS:
            squares = [0.0] * 768
            place = 0
            for letter in board:
                if letter.isdigit():
                    place += int(letter)
                elif letter != "/":
                    squares[place * 12 + PIECES.index(letter)] = 1.0
                    place += 1
            mirrored = [squares[i // 12 * 12 + (i + 6) % 12] for i in range(768)]
            rows.append(squares if sum(squares[:384]) > 0 else mirrored)
        yield (np.array(rows, np.float32),)


def network(x):
    h = x
    for width in (512, 64):
        h = tf.nn.relu(h @ v1.Variable(tf.random.normal((h.shape[1], width), stddev=0.02)))
    loss = tf.reduce_mean(tf.square(h - 1.0))
    return v1.train.GradientDescentOptimizer(1e-4).minimize(loss)


def feed(session, enqueue, x_in):
    try:
        for (batch,) in positions():
            session.run(enqueue, {x_in: batch})
    except tf.errors.CancelledError:
        return


def train(session, train_op, *, apart=None, x=None):
    clock = Clock(args)
    while clock.running():
        if apart is None:
            session.run(train_op)
        else:
            clock.asked()
            batch = session.run(apart)
            clock.got()
            session.run(train_op, {x: batch})
        clock.step()
    clock.report()


def by_hand():
    x_in = v1.placeholder(tf.float32, (None, 768))
    queue = tf.queue.RandomShuffleQueue(2000, 500, [tf.float32], shapes=[(768,)])
    enqueue = queue.enqueue_many([x_in])
    batch, apart = queue.dequeue_many(128), args.variant == "seen"
    x = v1.placeholder(tf.float32, (128, 768)) if apart else batch
    train_op = network(x)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for _ in range(2):
            threading.Thread(target=feed, args=(session, enqueue, x_in), daemon=True).start()
        train(session, train_op, apart=batch if apart else None, x=x)
        session.run(queue.close(cancel_pending_enqueues=True))


def by_runner():
    from fastfeed import FeedRunner

    with FeedRunner(positions, processes=2) as runner:
        (x,) = runner.get_inputs()
        train_op = network(x)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            runner.start(session)
            train(session, train_op)


def cached():
    train_op = network(v1.Variable(next(positions())[0], trainable=False))
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        train(session, train_op)


{"slow": by_hand, "seen": by_hand, "fixed": by_runner, "free": cached}[args.variant]()
