"""The sinks of a runner, one method for each; a framework is imported when its method is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fastfeed.errors import OptionError
from fastfeed.runner.iteration import IterationManager


class FrameworkAdapters:
    """One method for each framework. What it returns can be iterated over repeatedly; see
    `IterationManager` for where an iteration begins.

    The memory of a batch is kept for as long as anything that was made of it without a copy. Raise
    what iteration raises, StateError where the runner feeds another sink, and MissingExtra without
    the framework.
    """

    def _iterations_of(self, sink: str) -> IterationManager:
        raise NotImplementedError

    @property
    def __array__(self) -> Any:
        """Looked up by Keras and numpy to see if this is an array. Raise OptionError."""
        raise OptionError(
            "a FeedRunner is not an array: for fit(), evaluate() and predict() of Keras write "
            "runner.keras(), or runner.dataset() on TensorFlow; elsewhere iterate over it"
        )

    def dataset(self, *, prefetch: int = 0, ragged: bool = False, shapes: Any = None) -> Any:
        """Return a `tf.data.Dataset` of the batches, which wait in fastfeed's own buffer.

        `prefetch`: batches (or tf.data.AUTOTUNE) that TensorFlow takes ahead in a thread of its
        own, for copies to a device and where a core is free for the 0.2 ms that the hand-over
        costs; `snapshot().starvation` is then the wait of that thread, not of the step. `ragged`:
        padded leaves become a `tf.RaggedTensor` of the records as they were. `shapes`: record
        shapes in the structure of the batch, None where a dimension varies, for padded records
        whose first batch does not show which. Starts the producers and waits for the first batch,
        to learn dtypes and shapes.
        """
        from fastfeed.sinks.tf_dataset import dataset

        return dataset(
            self._iterations_of("a tf.data.Dataset"),
            prefetch=prefetch,
            ragged=ragged,
            shapes=shapes,
        )

    def keras(self) -> Any:
        """Return a `keras.utils.PyDataset` of the batches, for `fit` on any backend of Keras 3."""
        from fastfeed.sinks.keras_data import keras_data

        return keras_data(self._iterations_of("a PyDataset"))

    def torch(self, *, device: Any = None, pin_memory: bool | None = None) -> Iterable[Any]:
        """Return an iterable (a `torch.utils.data.IterableDataset`) of tensors.

        On the CPU they share the batch's memory. With a CUDA `device` the copies are asynchronous,
        on a stream of their own, with the next batch in flight; `pin_memory`: through page-locked
        memory, which None does on CUDA.
        """
        from fastfeed.sinks.torch_iter import torch_iter

        return torch_iter(self._iterations_of("torch"), device=device, pin_memory=pin_memory)

    def jax(self, device_or_sharding: Any = None) -> Iterable[Any]:
        """Return an iterable of JAX arrays, put on a device or a sharding one batch ahead."""
        from fastfeed.sinks.jax_iter import JaxBatches

        return JaxBatches(self._iterations_of("JAX"), device_or_sharding)

    def prefetch_to_device(self, put: Callable[[Any], Any], *, depth: int = 2) -> Iterable[Any]:
        """Return an iterable of `put(batch)`, called `depth` batches ahead in a thread, for any
        other framework.

        `put` is given numpy arrays that stay as they are while anything refers to them, and returns
        what it made.
        """
        from fastfeed.sinks.ahead import Prefetcher

        return Prefetcher(self._iterations_of("prefetch_to_device"), put, depth=depth)
