"""The sink for tf.data: a Dataset whose elements are the batches, in the memory in which the
producers made them."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed.augment.device import on_host
from fastfeed.errors import FeedError, MissingExtra, OptionError, StateError

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtra("TensorFlow", "tensorflow-cpu") from error

from fastfeed.sinks.tf_errors import crossing
from fastfeed.sinks.tf_types import check_shapes, element_spec, leaf_order, ragged_of, stated

if TYPE_CHECKING:
    from fastfeed.core.batch import BatchSpec
    from fastfeed.runner.iteration import EpochIterator, IterationManager

ID = tf.TensorSpec((), tf.int64)
NEVER = 2**62


def dataset(passes: IterationManager, *, prefetch: int, ragged: bool, shapes: Any) -> Any:
    """Return a `tf.data.Dataset` of the iterations, with `prefetch` batches taken ahead by
    TensorFlow.

    Raise OptionError for a wrong `prefetch`, SpecError for a dtype that TensorFlow does not have.
    """
    if (
        isinstance(prefetch, bool)
        or not isinstance(prefetch, (int, np.integer))
        or prefetch < tf.data.AUTOTUNE
    ):
        raise OptionError(
            f"dataset(prefetch={prefetch!r}): needed a number of batches, or tf.data.AUTOTUNE"
        )
    if ragged:
        passes.add_lengths()
    elif passes.lengths:
        raise StateError(
            "this runner's dataset is ragged=True already: make another FeedRunner for one that is "
            "not"
        )
    spec = passes.spec if shapes is None else stated(passes.spec, shapes, ragged=ragged)
    made = _Handover(passes, spec).dataset()
    if ragged:
        made = made.map(ragged_of(spec))
    if passes.length is not None:
        made = made.apply(tf.data.experimental.assert_cardinality(passes.length))
    options = tf.data.Options()
    # An injected prefetch waits all the time, and hides for how much of it the step did.
    options.experimental_optimization.inject_prefetch = False
    # TensorFlow's tuner sleeps for up to a minute, and an iterator's destructor, which wakes it a
    # moment before it sets the flag that ends it, now and then waits for that minute: 4 of 218
    # under load, none of 1500 without it.
    options.autotune.enabled = False
    if passes.sharded:  # the runner divides the records among the ranks
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    made = made.with_options(options)
    return made.prefetch(prefetch) if prefetch else made


class _Handover:
    """The Python half: two functions that TensorFlow calls, at the beginning of each iterator and
    for each element."""

    def __init__(self, passes: IterationManager, spec: BatchSpec) -> None:
        self._passes = passes
        self._batch_spec = spec
        self._ragged = spec.ragged
        self._spec = element_spec(spec, passes.rows)
        self._order = leaf_order(spec)
        self._numbers = itertools.count(1)
        self._newest: tuple[int, EpochIterator] = (0, iter(passes))
        # by the iterator's number: held until it has crossed
        self._failed: dict[int, FeedError] = {}
        self._errors = crossing()
        self._eager = tf.executing_eagerly()

    def dataset(self) -> Any:
        """Return a Dataset that opens an iteration for each iterator over it.

        An element costs half the CPU of `Dataset.from_generator`'s (bench/sinks.py), which also
        lowers the whole process's M_TRIM_THRESHOLD, so that every large array is returned to the
        system. It is a map that runs where it is requested, without a change of threads, and which
        may end the sequence.
        """
        spec, flat = self._spec, tf.nest.flatten(self._spec)
        dtypes = [leaf.dtype for leaf in flat]
        begin, next_leaves = self._loose("begin"), self._loose("following")

        def following(index: Any, number: Any) -> Any:
            leaves = tf.numpy_function(next_leaves, [number], dtypes)
            for leaf, known in zip(leaves, flat, strict=True):
                leaf.set_shape(known.shape)
            return leaves

        function = tf.function(
            following, input_signature=[ID, ID], autograph=False
        ).get_concrete_function()
        if not self._eager:  # a graph of TensorFlow 1 must be told about it
            function.add_to_graph(tf.compat.v1.get_default_graph())

        def opened(index: Any) -> Any:
            number = tf.numpy_function(begin, [], tf.int64)
            number.set_shape(())
            variant = tf.raw_ops.MapDataset(
                input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.range(NEVER)),
                other_arguments=[number, *function.captured_inputs],
                f=function,
                output_types=dtypes,
                output_shapes=[leaf.shape for leaf in flat],
                use_inter_op_parallelism=False,
                preserve_cardinality=False,
            )
            return tf.data.experimental.from_variant(variant, spec)

        made = tf.data.Dataset.from_tensors(np.int64(0)).flat_map(opened)
        # as every dataset made of it holds it, and every iterator its dataset
        made._fastfeed = self
        return made

    def begin(self) -> np.int64:
        """Register a new iterator; return its number."""
        number = next(self._numbers)
        self._newest = (number, iter(self._passes))
        self._failed = {}
        return np.int64(number)

    def following(self, number: Any) -> list[Any]:
        """Return the leaves of an iterator's next batch."""
        newest, mine = self._newest
        try:
            batch = mine.take() if newest == number else self._passes.superseded()
            if batch is None:
                raise StopIteration
            if self._ragged:
                check_shapes(batch, self._batch_spec, knob="dataset(shapes=...)")
        except FeedError as error:  # a prefetch that asks once more must not replace it
            raise self._errors.marked(self._failed.setdefault(int(number), error)) from None
        leaves = on_host(batch).leaves
        return [leaves[at] for at in self._order]

    def _loose(self, name: str) -> Callable[..., Any]:
        """Return a method for TensorFlow, whose default graph keeps every Python function forever:
        a graph of the user's may keep this object, but that of eager execution must not."""
        if not self._eager:
            method: Callable[..., Any] = getattr(self, name)
            return method
        loose = weakref.WeakMethod(getattr(self, name))

        def call(*args: Any) -> Any:
            method = loose()
            if method is None:
                raise RuntimeError(
                    "the Dataset that a FeedRunner made is gone: keep it, or one made of it"
                )
            return method(*args)

        return call
