"""The hand-written runner of TensorFlow 1, with two threads."""

import threading

import tensorflow as tf

from bench.migrations.work import BATCHES, loop, work

v1 = tf.compat.v1
v1.disable_eager_execution()


class CustomRunner:
    """Feeds a queue from daemon threads."""

    def __init__(self) -> None:
        self.x = v1.placeholder(tf.float32, [None, 28, 28])
        self.y = v1.placeholder(tf.int64, [None])
        self.queue = tf.queue.FIFOQueue(2000, [tf.float32, tf.int64], [[28, 28], []])
        self.enqueue = self.queue.enqueue_many([self.x, self.y])

    def get_inputs(self) -> object:
        return self.queue.dequeue_many(32)

    def thread_main(self, session: object, first: int) -> None:
        for index in range(first, BATCHES, 2):
            x, y = work(index)
            session.run(self.enqueue, feed_dict={self.x: x, self.y: y})

    def start(self, session: object) -> None:
        for first in range(2):
            threading.Thread(target=self.thread_main, args=(session, first), daemon=True).start()


runner = CustomRunner()
inputs = runner.get_inputs()
with v1.Session() as session:
    runner.start(session)
    loop(session.run(inputs) for _ in range(BATCHES))
