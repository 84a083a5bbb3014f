"""A training loop of JAX, fed by two worker processes that draw digits.

    python examples/jax_loop.py

`runner.jax()` puts the next batch on the device during the step on this one. The labels are int32
from the beginning, because JAX would cast int64 to that.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fastfeed import FeedRunner

# Five rows of three pixels for each digit: 4 + 2 + 1.
FONT = ("75557", "26222", "71747", "71717", "55711", "74717", "74757", "71111", "75757", "75717")


class Digits:
    """Noisy 8x8 images of digits at random places, drawn anew for each request, and the digits."""

    def __len__(self):
        return 20_000

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        digit = index % 10
        image = rng.normal(0, 0.2, (8, 8)).astype(np.float32)
        y, x = rng.integers(0, (4, 6))
        image[y : y + 5, x : x + 3] += [
            [int(row) >> bit & 1 for bit in (2, 1, 0)] for row in FONT[digit]
        ]
        return image.reshape(64), np.int32(digit)


def loss_of(layers, images, digits):
    hidden, out = layers
    scores = jax.nn.relu(images @ hidden["w"] + hidden["b"]) @ out["w"] + out["b"]
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), digits[:, None], axis=1).mean()


@jax.jit
def train(layers, images, digits):
    loss, gradients = jax.value_and_grad(loss_of)(layers, images, digits)
    return jax.tree_util.tree_map(lambda value, by: value - by, layers, gradients), loss


def main():
    rng = np.random.default_rng(0)
    sizes = ((64, 128), (128, 10))
    layers = [
        {"w": rng.normal(0, 0.1, size).astype(np.float32), "b": np.zeros(size[1], np.float32)}
        for size in sizes
    ]
    with FeedRunner(Digits(), batch_size=100, shuffle=True, seed=0, processes=2) as runner:
        batches = runner.jax()
        for epoch in range(2):
            for images, digits in batches:
                layers, loss = train(layers, images, digits)
            print(f"epoch {epoch + 1}: {len(batches)} steps, loss {loss:.3f}")
        print(f"waited for input {runner.snapshot().starvation:.1%} of the time")


if __name__ == "__main__":
    main()
