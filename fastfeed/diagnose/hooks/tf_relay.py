"""An iterator of tf.data that delivers batches which were taken from another one beforehand.

A function that takes an iterator waits for its batch in C++, where the wait cannot be observed. If
the batch is taken eagerly, the wait happens in Python; the function then finds the batch here.
Nothing of it touches the script's dataset, graph or random numbers, and nothing is traced again,
because both iterators have the same type.
"""

from __future__ import annotations

import sys
import time
import uuid
from typing import Any

ENDLESS = 2**62
TRIALS = 5


def fresh(tensor: Any) -> Any:
    """Return a tensor of numbers in memory of its own; others unchanged."""
    dtype = tensor.dtype
    if not (
        dtype.is_numpy_compatible
        and (dtype.is_floating or dtype.is_integer or dtype.is_bool or dtype.is_complex)
    ):
        return tensor
    return sys.modules["tensorflow"].raw_ops.DeepCopy(x=tensor)


class BatchRelay:
    """A queue without bound, as an iterator whose elements are like those of `like`. To be made and
    used eagerly."""

    def __init__(self, like: Any) -> None:
        tf = sys.modules["tensorflow"]
        data = sys.modules["tensorflow.python.ops.gen_dataset_ops"]
        self._next = data.iterator_get_next
        self._put = sys.modules["tensorflow.python.ops.gen_data_flow_ops"].queue_enqueue_v2
        self.spec = like.element_spec
        self._types, self._shapes = like._flat_output_types, like._flat_output_shapes
        self.source: Any = None  # the iterator of its batches
        self.held = 0
        # how the source ended, still to be passed on
        self.ended: BaseException | None = None
        with tf.init_scope(), tf.device("CPU:0"):
            # without a name all queues of these types are the same
            name = f"fastfeed {uuid.uuid4()}"
            self._queue = tf.raw_ops.FIFOQueueV2(
                component_types=self._types, capacity=-1, shared_name=name
            )
            self.iterator = iter(self._relay_dataset(tf))

    def _relay_dataset(self, tf: Any) -> Any:
        types = self._types

        def taken(index: Any, queue: Any) -> Any:
            return tf.raw_ops.QueueDequeueV2(handle=queue, component_types=types)

        signature = [tf.TensorSpec((), tf.int64), tf.TensorSpec((), tf.resource)]
        function = tf.function(
            taken, input_signature=signature, autograph=False
        ).get_concrete_function()
        variant = tf.raw_ops.MapDataset(
            input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.range(ENDLESS)),
            other_arguments=[self._queue],
            f=function,
            output_types=types,
            output_shapes=self._shapes,
            use_inter_op_parallelism=False,
            preserve_cardinality=False,
        )
        # neither threads of its own nor a prefetch, which would take from an empty queue
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_optimization.inject_prefetch = False
        options.experimental_optimization.apply_default_optimizations = False
        return tf.data.experimental.from_variant(variant, self.spec).with_options(options)

    def fits(self, iterator: Any) -> bool:
        """Return True if it can replace an iterator now: it has no other batches, and the same
        type."""
        if self.held or self.ended is not None:
            return self.source is iterator
        return bool(self.spec == iterator.element_spec)

    def take(self, iterator: Any, *, copies: bool = False) -> None:
        """Take a batch from an iterator, or a copy of it, which stays valid whatever its producer
        does with the memory. Raise what its `get_next` raises."""
        batch = self._next(iterator._iterator_resource, self._types, self._shapes)
        self._put(self._queue, [fresh(one) for one in batch] if copies else batch)
        self.source = iterator
        self.held += 1

    def handed_out(self) -> None:
        """Note that one of the batches is about to be taken out."""
        self.held -= 1
        if not self.held:
            self.source = None if self.ended is None else self.source

    def close(self) -> None:
        """Close the relay: after the last batch it reports the end of the data."""
        sys.modules["tensorflow"].raw_ops.QueueCloseV2(handle=self._queue)

    def base_s(self, iterator: Any) -> float:
        """Return the cost of taking a batch that is ready: the fastest of some passes of one batch
        through the relay.

        Take one batch from the iterator. Raise what its `get_next` raises.
        """
        self.take(iterator)
        times = []
        for _ in range(TRIALS):
            start_s = time.perf_counter()
            batch = self._next(self.iterator._iterator_resource, self._types, self._shapes)
            times.append(time.perf_counter() - start_s)
            self._put(self._queue, batch)
        return min(times)
