"""The same on fastfeed."""

import tensorflow as tf

from bench.migrations.work import BATCHES, TWO, loop, work
from fastfeed import FeedRunner, Worker

v1 = tf.compat.v1
v1.disable_eager_execution()


def batches(worker: Worker) -> object:
    """Yield this producer's share."""
    for index in range(worker.index, BATCHES, worker.count):
        yield work(index)


runner = FeedRunner(batches, shuffle=False, **TWO)
inputs = runner.get_inputs()
with v1.Session() as session:
    runner.start(session)
    loop(session.run(inputs) for _ in range(BATCHES))
