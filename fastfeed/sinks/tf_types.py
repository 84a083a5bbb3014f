"""The structure, dtypes and shapes of a batch as types of TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from fastfeed.core.batch import Batch, BatchSpec, with_shapes
from fastfeed.core.dtypes import BYTES
from fastfeed.core.structure import flattenable, rebuild
from fastfeed.errors import SpecError


def tf_dtype(dtype: np.dtype[Any], path: str) -> Any:
    """Return the dtype of a leaf. Raise SpecError for one that TensorFlow does not have."""
    if dtype == BYTES:
        return tf.string
    try:
        return tf.as_dtype(dtype)
    except TypeError:
        raise SpecError(
            f"{path} has dtype {dtype}, which TensorFlow does not have: cast it with dtypes="
        ) from None


def element_spec(spec: BatchSpec, rows: int | None) -> Any:
    """Return nested `tf.TensorSpec`s of batches with `rows` records (None: varies). Lists become
    tuples: tf.data has none. Raise SpecError for keys that it cannot sort."""
    leaves = [
        tf.TensorSpec((rows, *leaf.shape), tf_dtype(leaf.dtype, leaf.path)) for leaf in spec.leaves
    ]
    nested = rebuild(flattenable(spec.structure), leaves)
    return tf.nest.map_structure(lambda leaf: leaf or tf.NoneTensorSpec(), nested)


def leaf_order(spec: BatchSpec) -> list[int]:
    """Return the order of the leaves in tf.data, which sorts the keys of dicts."""
    numbers = rebuild(flattenable(spec.structure), range(len(spec.leaves)))
    return [number for number in tf.nest.flatten(numbers) if number is not None]


def ragged_of(spec: BatchSpec) -> Callable[[Any, Any], Any]:
    """Return a function of a padded batch and its lengths: the batch, with a `tf.RaggedTensor` for
    each leaf whose records vary in shape."""
    order = leaf_order(spec)
    shapes = [spec.leaves[at].shape for at in order[: len(order) // 2]]
    depths = list(map(_depth, shapes))

    def ragged(batch: Any, lengths: Any) -> Any:
        of_leaf = iter(depths)

        def made(leaf: Any, sizes: Any) -> Any:
            return None if leaf is None else _ragged(leaf, sizes, depth=next(of_leaf))

        return tf.nest.map_structure(made, batch, lengths)

    return ragged


def _depth(shape: tuple[int | None, ...]) -> int:
    """Return the number of axes of a record up to the last one that varies."""
    return max((axis + 1 for axis, size in enumerate(shape) if size is None), default=0)


def _ragged(padded: Any, sizes: Any, *, depth: int) -> Any:
    """Return a RaggedTensor. `sizes`: one row for each record, with the length of each of its axes,
    of which `depth` vary."""
    if not depth:
        return padded
    # the default dtype of row partitions
    sizes = tf.cast(sizes, tf.int64)
    rows = tf.ones_like(sizes[:, 0])  # of the next axis, in each record
    lengths = []
    for axis in range(depth):
        lengths.append(tf.repeat(sizes[:, axis], rows))
        rows *= sizes[:, axis]
    return tf.RaggedTensor.from_tensor(padded, lengths=lengths)


def with_stated_shapes(spec: BatchSpec, shapes: Any, *, ragged: bool) -> BatchSpec:
    """Return `spec` with the record shapes that the user gives for the batch; with `ragged` it is
    one of (batch, lengths)."""
    if not ragged or spec.structure is None:
        return with_shapes(spec, shapes)
    count = len(spec.leaves) // 2
    batch = with_shapes(
        replace(spec, structure=spec.structure.children[0], leaves=spec.leaves[:count]), shapes
    )
    return replace(spec, leaves=(*batch.leaves, *spec.leaves[count:]))


def check_lengths(batch: Batch, spec: BatchSpec, *, knob: str) -> None:
    """Raise SpecError for records of (batch, lengths) that are shorter than a dimension which the
    graph was built for as one that does not vary: what pads them would count as data."""
    count = len(spec.leaves) // 2
    for leaf, sizes in zip(spec.leaves[:count], batch.leaves[count:], strict=True):
        for axis in range(_depth(leaf.shape), len(leaf.shape)):
            if bool((np.asarray(sizes)[:, axis] != leaf.shape[axis]).any()):
                raise SpecError(
                    f"{leaf.path} has records that are shorter than {leaf.shape}, which the graph "
                    "was built for, as far as the first batch showed it: state which dimensions "
                    f"vary with {knob}"
                )


def check_shapes(batch: Batch, spec: BatchSpec, *, knob: str) -> None:
    """Raise SpecError for padded records that the graph was not built for; `knob` is the option
    that states which dimensions vary."""
    for array, leaf in zip(batch.leaves, spec.leaves, strict=True):
        if any(
            want not in (None, have) for want, have in zip(leaf.shape, array.shape[1:], strict=True)
        ):
            raise SpecError(
                f"{leaf.path} has records of shape {array.shape[1:]}, and the graph was built for "
                f"{leaf.shape}, as far as the first batch showed it: state which dimensions vary "
                f"with {knob}"
            )
