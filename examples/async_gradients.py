"""Gradients of a perceptron by PyTorch or JAX, for async_arrays.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

SIZES = (784, 100, 10)
Arrays = list[np.ndarray]


def torch_gradients() -> Callable[[Arrays, np.ndarray, np.ndarray], Arrays]:
    """Return a function from parameters and a batch to the gradients."""
    import torch

    torch.set_num_threads(1)  # the workers share the cores

    def gradients(arrays: Arrays, images: np.ndarray, labels: np.ndarray) -> Arrays:
        w, b, v, c = leaves = [torch.from_numpy(array).requires_grad_() for array in arrays]
        scores = torch.relu(torch.from_numpy(images) @ w + b) @ v + c
        loss = torch.nn.functional.cross_entropy(scores, torch.tensor(labels))
        return [gradient.numpy() for gradient in torch.autograd.grad(loss, leaves)]

    return gradients


def jax_gradients() -> Callable[[Arrays, np.ndarray, np.ndarray], Arrays]:
    """Return a function from parameters and a batch to the gradients."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_platforms", "cpu")

    def loss(arrays: Any, images: Any, labels: Any) -> Any:
        w, b, v, c = arrays
        scores = jax.nn.log_softmax(jax.nn.relu(images @ w + b) @ v + c)
        return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean()

    gradient = jax.jit(jax.grad(loss))
    return lambda arrays, images, labels: list(
        map(np.asarray, gradient(arrays, images, labels.astype(np.int32)))
    )
