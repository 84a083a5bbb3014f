"""The sink for JAX: batches put on a device or a sharding, one ahead of the step."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed.augment.device import on_device
from fastfeed.core.batch import Batch, BatchSpec
from fastfeed.core.structure import describe, flatten_like, rebuild
from fastfeed.errors import FeedWarning, MissingExtra, OptionError, SpecError
from fastfeed.sinks.ahead import length, one_ahead

try:
    import jax
except ImportError as error:
    raise MissingExtra("JAX", "jax") from error

if TYPE_CHECKING:
    from fastfeed.runner.iteration import IterationManager


def jax_iter(passes: IterationManager, device_or_sharding: Any) -> JaxBatches:
    """Return an iterable of the batches as JAX arrays, on anything that `jax.device_put` takes;
    None is JAX's default device."""
    return JaxBatches(passes, device_or_sharding)


class JaxBatches:
    """The batches as JAX arrays; while a step works on one, the next is put.

    Where JAX takes an array without a copy (on the CPU, 64-byte aligned), the JAX array holds the
    batch's memory as long as it lives. JAX writes to no such memory, even if the array is donated.
    Raise SpecError for leaves that JAX cannot hold, or that a sharding cannot divide.
    """

    def __init__(self, passes: IterationManager, device_or_sharding: Any) -> None:
        self._passes = passes
        self._given = device_or_sharding
        self._target: Any = None  # of each leaf, or of all
        self._spec: BatchSpec | None = None

    def __len__(self) -> int:
        """Return the batches of an iteration. Raise TypeError if that is unknown."""
        return length(self._passes)

    def __iter__(self) -> Iterator[Any]:
        spec = self._passes.spec
        if self._spec is None:
            self._target = _target(spec, self._given)
            _warn_of_casts(spec)
            self._spec = spec
        yield from one_ahead(iter(iter(self._passes).take, None), self._put)

    def _put(self, batch: Batch) -> Any:
        assert self._spec is not None  # set when the iteration began
        # leaves, not containers: JAX sorts the keys of dicts, which must be comparable for that
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
        """Raise SpecError with the leaf and the way out, which JAX's own text lacks."""
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
                    f"which {target} cannot divide: needed a batch_size= that it can, and "
                    'last_batch="drop" where only the last batch is smaller'
                ) from error


def _target(spec: BatchSpec, given: Any) -> Any:
    """Return the device or sharding of each leaf, for `jax.device_put`."""
    if not isinstance(given, (tuple, list, Mapping)):
        return given
    spread_out = flatten_like(spec.structure, given)
    if spread_out is None or any(
        isinstance(target, (tuple, list, Mapping)) for target in spread_out
    ):
        raise OptionError(
            f"jax(device_or_sharding={given!r}) does not fit the batch: needed one for all leaves, "
            f"or {describe(spec.structure)}"
        )
    return spread_out


def _warn_of_casts(spec: BatchSpec) -> None:
    """Warn once about what JAX casts. Raise SpecError for what it cannot hold."""
    cast = []
    for leaf in spec.leaves:
        try:
            held = jax.device_put(np.empty(0, leaf.dtype)).dtype
        except TypeError:
            raise SpecError(
                f"{leaf.path} holds {'bytes' if leaf.dtype.kind == 'S' else leaf.dtype}, which JAX "
                "does not have: cast numbers in the producers with dtypes=, and turn bytes into "
                "numbers in the source"
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
