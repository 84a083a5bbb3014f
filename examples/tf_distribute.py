"""Data-parallel training: MirroredStrategy on two logical CPUs, each of which gets half of every
batch.

    python examples/tf_distribute.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fastfeed import FeedRunner


class Points:
    """An indexable of points, and 1 for those inside a circle, else 0."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.float32]:
        point = np.random.default_rng(index).uniform(-1, 1, 2).astype(np.float32)
        return point, np.float32(np.hypot(*point) < 0.7)


def main() -> None:
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    tf.keras.utils.set_random_seed(1)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(32, "tanh"), tf.keras.layers.Dense(1)])
        optimizer = tf.keras.optimizers.Adam(0.05)
        model.build((None, 2))
        optimizer.build(model.trainable_variables)

    def replica_step(points: Any, inside: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(points, training=True)[:, 0]
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(inside, logits))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    @tf.function
    def step(batch: Any) -> Any:
        losses = strategy.run(replica_step, args=batch)
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)

    # last_batch="drop": every batch can be halved. Several machines: shard=(rank, world) as well.
    with FeedRunner(
        Points(), batch_size=128, last_batch="drop", shuffle=True, seed=1, threads=2
    ) as runner:
        batches = strategy.experimental_distribute_dataset(runner.dataset())
        for epoch in range(5):
            losses = [float(step(batch)) for batch in batches]
            print(f"epoch {epoch}: {len(losses)} steps, loss {np.mean(losses):.3f}")


if __name__ == "__main__":
    main()
