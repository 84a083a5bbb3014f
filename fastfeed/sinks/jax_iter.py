"""The sink for JAX: batches put on a device or a sharding, one ahead of the step."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed.augment.device import on_device
from fastfeed.core.batch import Batch, BatchSpec
from fastfeed.core.structure import describe, flatten_like, rebuild
from fastfeed.errors import FeedWarning, OptionError, SpecError, required
from fastfeed.sinks.ahead import length, one_ahead

with required("JAX", "jax"):
    import jax

if TYPE_CHECKING:
    from fastfeed.runner.iteration import IterationManager


class JaxBatches:
    """The batches as JAX arrays, on anything that `jax.device_put` takes; None is JAX's default
    device. During a step on one, the next is put on the device.

    If JAX takes an array without a copy (on the CPU, 64-byte aligned), the JAX array keeps the
    memory of the batch. JAX does not write to that memory, even if the array is donated.
    Raise SpecError for leaves that JAX cannot hold, or that a sharding cannot divide.
    """

    def __init__(self, iterations: IterationManager, device_or_sharding: Any) -> None:
        self._iterations = iterations
        self._device_or_sharding = device_or_sharding
        self._target: Any = None  # of each leaf, or of all
        self._spec: BatchSpec | None = None

    def __len__(self) -> int:
        """Return the batches of an iteration. Raise TypeError if that is unknown."""
        return length(self._iterations)

    def __iter__(self) -> Iterator[Any]:
        spec = self._iterations.spec
        if self._spec is None:
            self._target = _target(spec, self._device_or_sharding)
            _warn_of_casts(spec)
            self._spec = spec
        yield from one_ahead(self._iterations, self._put)

    def _put(self, batch: Batch) -> Any:
        assert self._spec is not None  # set when the iteration began
        # leaves, not containers: JAX sorts the keys of dicts, and not all keys are comparable
        try:
            leaves = [
                jax.dlpack.from_dlpack(leaf) if on_device(leaf) else leaf for leaf in batch.leaves
            ]
            arrays = jax.device_put(leaves, self._target)
        except ValueError as error:
            self._refuse_undivided(batch, error)
            raise
        return rebuild(self._spec.structure, arrays)

    def _refuse_undivided(self, batch: Batch, error: ValueError) -> None:
        """Raise SpecError that names the leaf and a solution, which the error of JAX does not."""
        assert self._spec is not None  # as above
        targets = (
            self._target if isinstance(self._target, list) else [self._target] * len(batch.leaves)
        )
        for leaf, array, target in zip(self._spec.leaves, batch.leaves, targets, strict=True):
            try:
                if isinstance(target, jax.sharding.Sharding):
                    target.shard_shape(array.shape)
            except ValueError:
                raise SpecError(
                    f"{leaf.path} has shape {array.shape} in a batch of {batch.rows} records, "
                    f"which {target} cannot divide: set a batch_size= that it can, and "
                    'last_batch="drop" if only the last batch is smaller'
                ) from error


def _target(spec: BatchSpec, option: Any) -> Any:
    """Return the device or sharding of each leaf, for `jax.device_put`."""
    if not isinstance(option, (tuple, list, Mapping)):
        return option
    spread_out = flatten_like(spec.structure, option)
    if spread_out is None or any(
        isinstance(target, (tuple, list, Mapping)) for target in spread_out
    ):
        raise OptionError(
            f"jax(device_or_sharding={option!r}) does not fit the batch: must be one for all "
            f"leaves, or {describe(spec.structure)}"
        )
    return spread_out


def _warn_of_casts(spec: BatchSpec) -> None:
    """Warn about leaves that JAX casts. Raise SpecError for dtypes that it does not have."""
    cast = []
    for leaf in spec.leaves:
        try:
            held = jax.device_put(np.empty(0, leaf.dtype)).dtype
        except TypeError:
            raise SpecError(
                f"{leaf.path} holds {leaf.name}, which JAX does not have: cast numbers in the "
                "producers with dtypes=, and turn bytes into numbers there, as in "
                "np.frombuffer(text.encode(), np.uint8)"
            ) from None
        if held != leaf.dtype:
            cast.append(f"{leaf.path} from {leaf.dtype} to {held}")
    if cast:
        warnings.warn(
            f"JAX casts {', '.join(cast)}, in the training thread and for every batch: cast in "
            "the producers with dtypes=, or keep 64 bits with jax.config.update('jax_enable_x64', "
            "True)",
            FeedWarning,
            stacklevel=3,
        )
