"""The sink for tf.data: a Dataset whose elements are our batches, in the memory in which the producers made them."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed.errors import FeedError, MissingExtra, OptionError

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtra("TensorFlow", "tensorflow-cpu") from error

from fastfeed.sinks.tf_errors import crossing
from fastfeed.sinks.tf_types import element_spec, leaf_order, ragged_of

if TYPE_CHECKING:
    from fastfeed.passes import Pass, Passes

ID = tf.TensorSpec((), tf.int64)


def dataset(passes: Passes, *, prefetch: int, ragged: bool) -> Any:
    """A `tf.data.Dataset` of the passes, with `prefetch` batches taken ahead by TensorFlow.

    Raises OptionError for a `prefetch` that is none, SpecError for a dtype that TensorFlow does not have.
    """
    if isinstance(prefetch, bool) or not isinstance(prefetch, (int, np.integer)) or prefetch < tf.data.AUTOTUNE:
        raise OptionError(f"dataset(prefetch={prefetch!r}): needed a number of batches, or tf.data.AUTOTUNE")
    if ragged:
        passes.say_lengths()
    made = _Handover(passes).dataset()
    if ragged:
        made = made.map(ragged_of(passes.spec))
    if passes.length is not None:
        made = made.apply(tf.data.experimental.assert_cardinality(passes.length))
    options = tf.data.Options()
    # A prefetch that nobody asked for waits all the time, and hides for how much of it the step did.
    options.experimental_optimization.inject_prefetch = False
    if passes.sharded:  # the ranks' shares are ours to deal
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    made = made.with_options(options)
    return made.prefetch(prefetch) if prefetch else made


class _Handover:
    """The Python half: three functions that TensorFlow calls for each iterator."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self._spec = element_spec(passes.spec, passes.rows)
        self._order = leaf_order(passes.spec)
        self._open: dict[int, Pass] = {}
        self._failed: dict[int, FeedError] = {}
        self._numbers = itertools.count()
        self._errors = crossing()
        self._eager = tf.executing_eagerly()

    def dataset(self) -> Any:
        """A Dataset that opens a pass for each iterator over it.

        As `Dataset.from_generator` is built, without what that does to each element in Python.
        """
        flat = tf.nest.flatten(self._spec)
        dtypes = [leaf.dtype for leaf in flat]

        def begin(dummy: Any) -> Any:
            return tf.numpy_function(self._loose("begin"), [], tf.int64)

        def following(number: Any) -> Any:
            leaves = tf.numpy_function(self._loose("following"), [number], dtypes)
            for leaf, spec in zip(leaves, flat, strict=True):
                leaf.set_shape(spec.shape)
            return leaves

        def end(number: Any) -> Any:
            return tf.numpy_function(self._loose("end"), [number], tf.int64)

        functions = [_function(f) for f in (begin, following, end)]

        def generated(dummy: Any) -> Any:
            variant = tf.raw_ops.GeneratorDataset(
                init_func_other_args=[dummy, *functions[0].captured_inputs],
                next_func_other_args=functions[1].captured_inputs,
                finalize_func_other_args=functions[2].captured_inputs,
                init_func=functions[0],
                next_func=functions[1],
                finalize_func=functions[2],
                output_types=dtypes,
                output_shapes=[leaf.shape for leaf in flat],
            )
            return tf.data.experimental.from_variant(variant, self._spec)

        made = tf.data.Dataset.from_tensors(np.int64(0)).flat_map(generated)
        made._fastfeed = self  # as every dataset made of it holds it, and every iterator its dataset
        return made

    def begin(self) -> np.int64:
        """An iterator comes into being; its number."""
        number = next(self._numbers)
        self._open[number] = iter(self._passes)
        return np.int64(number)

    def following(self, number: Any) -> list[Any]:
        """The leaves of an iterator's next batch."""
        try:
            batch = self._open[int(number)].take()
        except FeedError as error:
            self._failed[int(number)] = error  # until it has crossed, and longer
            raise self._errors.marked(error) from None
        if batch is None:
            raise StopIteration
        leaves = batch.leaves
        return [leaves[at] for at in self._order]

    def end(self, number: Any) -> np.int64:
        """An iterator is gone."""
        self._open.pop(int(number), None)
        self._failed.pop(int(number), None)
        return np.int64(0)

    def _loose(self, name: str) -> Callable[..., Any]:
        """A method for TensorFlow, whose default graph keeps every Python function for ever: a graph of the user's may
        keep this object, too, but that of eager execution must not."""
        if not self._eager:
            method: Callable[..., Any] = getattr(self, name)
            return method
        loose = weakref.WeakMethod(getattr(self, name))

        def call(*args: Any) -> Any:
            method = loose()
            if method is None:
                raise RuntimeError("the Dataset that a FeedRunner made is gone: keep it, or one made of it")
            return method(*args)

        return call


def _function(python: Any) -> Any:
    """A function of the graph, of one int64; a graph of TensorFlow 1 must be told of it."""
    made = tf.function(python, input_signature=[ID], autograph=False).get_concrete_function()
    if not tf.executing_eagerly():
        made.add_to_graph(tf.compat.v1.get_default_graph())
    return made
