"""A custom training loop with tf.GradientTape, over a tf.data.Dataset that worker processes fill.

python examples/custom_loop.py
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fastfeed import FeedRunner, Worker

BATCHES, SIZE = 60, 64


def batches(worker: Worker) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield this producer's share of an epoch: points, and 1 for those inside a circle, else 0."""
    for _ in range(worker.index, BATCHES, worker.count):
        points = worker.rng.uniform(-1, 1, (SIZE, 2)).astype(np.float32)
        yield points, (np.hypot(*points.T) < 0.7).astype(np.float32)


def main() -> None:
    import tensorflow as tf  # here, so that a worker process need not import it

    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([tf.keras.layers.Dense(32, "tanh"), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.Adam(0.05)

    @tf.function
    def step(points: Any, inside: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(points, training=True)[:, 0]
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(inside, logits))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    with FeedRunner(batches, processes=2, seed=1) as runner:
        dataset = runner.dataset()
        for epoch in range(5):  # each pass is the next epoch, made by the same workers
            losses = [float(step(*batch)) for batch in dataset]
            print(
                f"epoch {epoch}: loss {np.mean(losses):.3f}, waiting for input "
                f"{runner.snapshot().starvation:.0%}"
            )


if __name__ == "__main__":
    main()
