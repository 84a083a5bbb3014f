"""The sink for tf.data: a Dataset whose elements are the batches, without a copy."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed.augment.device import on_host
from fastfeed.errors import FeedError, OptionError, required

with required("TensorFlow", "tensorflow-cpu"):
    import tensorflow as tf

from fastfeed.sinks.tf_errors import error_registry
from fastfeed.sinks.tf_types import (
    check_lengths,
    check_shapes,
    element_spec,
    leaf_order,
    ragged_of,
    with_stated_shapes,
)

if TYPE_CHECKING:
    from fastfeed.core.batch import BatchSpec
    from fastfeed.runner.iteration import EpochIterator, IterationManager

SCALAR_INT64 = tf.TensorSpec((), tf.int64)
ENDLESS = 2**62


def dataset(iterations: IterationManager, *, prefetch: int, ragged: bool, shapes: Any) -> Any:
    """Return a `tf.data.Dataset` of the iterations, with `prefetch` batches taken ahead by
    TensorFlow.

    Raise OptionError for a wrong `prefetch` and for `ragged` without lengths, SpecError for a dtype
    that TensorFlow does not have.
    """
    if (
        isinstance(prefetch, bool)
        or not isinstance(prefetch, (int, np.integer))
        or prefetch < tf.data.AUTOTUNE
    ):
        raise OptionError(
            f"dataset(prefetch={prefetch!r}): must be a number of batches, or tf.data.AUTOTUNE"
        )
    if ragged and not iterations.lengths:
        raise OptionError(
            "dataset(ragged=True) needs the lengths of the records: set pad=Pad(0, lengths=True)"
        )
    iterations.skip_end()
    spec = (
        iterations.spec
        if shapes is None
        else with_stated_shapes(iterations.spec, shapes, ragged=ragged)
    )
    result = TensorFlowHandover(iterations, spec, unpads=ragged).dataset()
    if ragged:
        result = result.map(ragged_of(spec))
    length = iterations.length if iterations.exact else None
    if length is not None and not iterations.resumed:
        result = result.apply(tf.data.experimental.assert_cardinality(length))
    options = tf.data.Options()
    # An injected prefetch would wait all the time, and hide the waits of the step.
    options.experimental_optimization.inject_prefetch = False
    # The tuner of TensorFlow sleeps for up to a minute. The destructor of an iterator wakes it a
    # moment before setting the flag that ends it, and sometimes waits for that minute: 4 of 218
    # times under load, none of 1500 without the tuner.
    options.autotune.enabled = False
    if iterations.sharded:  # the runner divides the records among the ranks
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    result = result.with_options(options)
    result = result.prefetch(prefetch) if prefetch else result
    if length is not None and iterations.resumed:
        # Told nothing, fit() takes the batches of its first epoch, the rest of one, for all epochs.
        result.cardinality = lambda: tf.constant(length, tf.int64)
    return result


class TensorFlowHandover:
    """The functions that TensorFlow calls at the beginning of each iterator and for each
    element."""

    def __init__(
        self, iterations: IterationManager, spec: BatchSpec, *, unpads: bool = False
    ) -> None:
        self._iterations = iterations
        self._batch_spec = spec
        self._ragged = spec.ragged
        self._unpads = unpads  # ragged tensors are made of it
        self._spec = element_spec(spec, iterations.rows)
        self._order = leaf_order(spec)
        self._numbers = itertools.count(1)
        self._newest: tuple[int, EpochIterator] = (0, iter(iterations))
        # by the number of the iterator: kept alive until it has passed TensorFlow
        self._errors_by_iterator: dict[int, FeedError] = {}
        self._registry = error_registry()
        self._eager = tf.executing_eagerly()

    def dataset(self) -> Any:
        """Return a Dataset that opens an iteration for each iterator over it.

        An element costs half the CPU of `Dataset.from_generator`'s (bench/sinks.py), which also
        lowers the whole process's M_TRIM_THRESHOLD, so that every large array is returned to the
        system. It is a map that runs where it is requested, without a change of threads, and which
        may end the sequence.
        """
        spec = self._spec
        flat = [leaf for leaf in tf.nest.flatten(spec) if isinstance(leaf, tf.TensorSpec)]
        dtypes = [leaf.dtype for leaf in flat]
        begin, next_leaves_callback = (
            self._weak_callback("begin"),
            self._weak_callback("next_leaves"),
        )

        def next_leaves(index: Any, number: Any) -> Any:
            leaves = tf.numpy_function(next_leaves_callback, [number], dtypes)
            for leaf, known in zip(leaves, flat, strict=True):
                leaf.set_shape(known.shape)
            return leaves

        function = tf.function(
            next_leaves, input_signature=[SCALAR_INT64, SCALAR_INT64], autograph=False
        ).get_concrete_function()
        if not self._eager:  # a graph of TensorFlow 1 does not add it by itself
            function.add_to_graph(tf.compat.v1.get_default_graph())

        def open_iterator(index: Any) -> Any:
            number = tf.numpy_function(begin, [], tf.int64)
            number.set_shape(())
            variant = tf.raw_ops.MapDataset(
                input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.range(ENDLESS)),
                other_arguments=[number, *function.captured_inputs],
                f=function,
                output_types=dtypes,
                output_shapes=[leaf.shape for leaf in flat],
                use_inter_op_parallelism=False,
                preserve_cardinality=False,
            )
            return tf.data.experimental.from_variant(variant, spec)

        result = tf.data.Dataset.from_tensors(np.int64(0)).flat_map(open_iterator)
        # Keeps this object alive: datasets made of this one refer to it, and iterators to theirs.
        result._fastfeed = self
        return result

    def begin(self) -> np.int64:
        """Register a new iterator; return its number."""
        number = next(self._numbers)
        self._newest = (number, iter(self._iterations))
        self._errors_by_iterator = {}
        return np.int64(number)

    def next_leaves(self, number: Any) -> list[Any]:
        """Return the leaves of an iterator's next batch."""
        newest, iterator = self._newest
        try:
            batch = iterator.take() if newest == number else self._iterations.superseded()
            if batch is None:
                raise StopIteration
            if self._ragged:
                check_shapes(batch, self._batch_spec, knob="dataset(shapes=...)")
            if self._unpads:
                check_lengths(batch, self._batch_spec, knob="dataset(shapes=...)")
        except FeedError as error:  # a prefetch that asks again gets the same error
            raise self._registry.mark(
                self._errors_by_iterator.setdefault(int(number), error)
            ) from None
        leaves = on_host(batch).leaves
        return [leaves[at] for at in self._order]

    def _weak_callback(self, name: str) -> Callable[..., Any]:
        """Return a method as a callback of TensorFlow, whose default graph keeps every Python
        function forever. A graph of the user may keep this object; that of eager execution must
        not."""
        if not self._eager:
            method: Callable[..., Any] = getattr(self, name)
            return method
        weak_method = weakref.WeakMethod(getattr(self, name))

        def call(*args: Any) -> Any:
            method = weak_method()
            if method is None:
                raise RuntimeError(
                    "the Dataset that a FeedRunner made is gone: keep it, or one made of it"
                )
            return method(*args)

        return call
