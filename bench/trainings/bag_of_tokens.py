"""The network of the texts in JAX: means of embeddings, and a hidden layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.trainings.training import SEED

UNITS, RATE = 64, 3e-4
MEAN, SQUARE = 0.9, 0.999  # decays of Adam


def trained(tokens: int, classes: int) -> Callable[[Any, Any], float]:
    """Return a function that trains a new network on one batch by Adam, and returns its loss."""
    rng = np.random.default_rng(SEED)
    sizes = (tokens, UNITS), (UNITS, UNITS), (UNITS, classes)
    weights = [jnp.array(rng.normal(0, size[0] ** -0.5, size), jnp.float32) for size in sizes]
    zeros = [jnp.zeros_like(one) for one in weights]
    state = [(weights, zeros, zeros, 0)]

    def train(batch: Any, labels: Any) -> float:
        state[0], loss = step(state[0], batch, labels)
        return float(loss)

    return train


def loss_of(weights: Any, batch: Any, labels: Any) -> Any:
    """Return the loss of a batch of tokens, in which 0 is padding."""
    embedded, hidden, out = weights
    there = (batch > 0)[..., None]
    means = jnp.where(there, embedded[batch], 0).sum(1) / jnp.maximum(there.sum(1), 1)
    scores = jax.nn.relu(UNITS**0.5 * means @ hidden) @ out
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], axis=1).mean()


@jax.jit
def step(state: Any, batch: Any, labels: Any) -> Any:
    """Return the next state and the loss."""
    weights, means, squares, count = state
    loss, gradients = jax.value_and_grad(loss_of)(weights, batch, labels)
    count = count + 1
    means = [MEAN * m + (1 - MEAN) * g for m, g in zip(means, gradients, strict=True)]
    squares = [SQUARE * s + (1 - SQUARE) * g**2 for s, g in zip(squares, gradients, strict=True)]
    rate = RATE * jnp.sqrt(1 - SQUARE**count) / (1 - MEAN**count)
    weights = [
        w - rate * m / (jnp.sqrt(s) + 1e-8) for w, m, s in zip(weights, means, squares, strict=True)
    ]
    return (weights, means, squares, count), loss
