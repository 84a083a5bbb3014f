"""Two generators in tf.data, interleaved."""

import tensorflow as tf

from bench.migrations.work import BATCHES, loop, work


def batches(first: int) -> object:
    """Yield every second batch."""
    for index in range(first, BATCHES, 2):
        yield work(index)


signature = tf.TensorSpec((None, 28, 28), tf.float32), tf.TensorSpec((None,), tf.int64)
dataset = tf.data.Dataset.range(2).interleave(
    lambda n: tf.data.Dataset.from_generator(batches, args=(n,), output_signature=signature),
    cycle_length=2,
    num_parallel_calls=2,
)
loop(dataset.prefetch(tf.data.AUTOTUNE))
