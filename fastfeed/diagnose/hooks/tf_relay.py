"""Iterator of tf.data that delivers batches which were taken from another iterator beforehand.

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

RELAY_ELEMENTS = 2**62  # elements of a dataset that does not end
TRIALS = 5  # passes of a batch that measure what a pass costs


def copied_tensor(tensor: Any) -> Any:
    """Return a tensor of numbers in memory of its own, and any other tensor unchanged."""
    dtype = tensor.dtype
    if not (
        dtype.is_numpy_compatible
        and (dtype.is_floating or dtype.is_integer or dtype.is_bool or dtype.is_complex)
    ):
        return tensor
    return sys.modules["tensorflow"].raw_ops.DeepCopy(x=tensor)


class BatchRelay:
    """Queue without bound, as an iterator whose elements are like those of `like`.

    It is created and used eagerly. `error` is how the source ended, which is still to be raised.
    """

    def __init__(self, like: Any) -> None:
        tf = sys.modules["tensorflow"]
        data = sys.modules["tensorflow.python.ops.gen_dataset_ops"]
        self._next = data.iterator_get_next
        self._put = sys.modules["tensorflow.python.ops.gen_data_flow_ops"].queue_enqueue_v2
        self.spec = like.element_spec
        self._types, self._shapes = like._flat_output_types, like._flat_output_shapes
        self.source: Any = None  # the iterator whose batches or error it holds
        self.held = 0  # batches
        self.error: Exception | None = None
        with tf.init_scope(), tf.device("CPU:0"):
            # without a name all queues of these types are the same
            name = f"fastfeed {uuid.uuid4()}"
            self._queue = tf.raw_ops.FIFOQueueV2(
                component_types=self._types, capacity=-1, shared_name=name
            )
            self.iterator = iter(self._relay_dataset(tf))

    def _relay_dataset(self, tf: Any) -> Any:
        types = self._types

        def dequeue(index: Any, queue: Any) -> Any:
            return tf.raw_ops.QueueDequeueV2(handle=queue, component_types=types)

        signature = [tf.TensorSpec((), tf.int64), tf.TensorSpec((), tf.resource)]
        function = tf.function(
            dequeue, input_signature=signature, autograph=False
        ).get_concrete_function()
        variant = tf.raw_ops.MapDataset(
            input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.range(RELAY_ELEMENTS)),
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

    def can_replace(self, iterator: Any) -> bool:
        """Return True if it holds nothing of another iterator, and has the same type."""
        if self.held or self.error is not None:
            return self.source is iterator
        return bool(self.spec == iterator.element_spec)

    def has_input_of(self, iterator: Any) -> bool:
        """Return True if it holds a batch or the error of an iterator."""
        return self.source is iterator and bool(self.held or self.error is not None)

    def take(self, iterator: Any, *, copies: bool = False) -> None:
        """Take a batch from an iterator; raise what its `get_next` raises.

        A copy of the batch stays valid when its producer reuses the memory.
        """
        batch = self._next(iterator._iterator_resource, self._types, self._shapes)
        self._put(self._queue, [copied_tensor(tensor) for tensor in batch] if copies else batch)
        self.source = iterator
        self.held += 1

    def fail(self, iterator: Any, error: Exception) -> None:
        """Hold the error of an iterator behind its batches."""
        self.error, self.source = error, iterator

    def take_error(self) -> Exception | None:
        """Return the error, which is then forgotten, as is its iterator if no batch is left."""
        error, self.error = self.error, None
        if not self.held:
            self.source = None
        return error

    def hand_out(self, count: int = 1) -> None:
        """Let the next `count` batches be taken out."""
        self.held -= count
        if not self.held and self.error is None:
            self.source = None

    def close(self) -> None:
        """Close the relay: after the last batch it reports the end of the data."""
        sys.modules["tensorflow"].raw_ops.QueueCloseV2(handle=self._queue)

    def overhead_s(self, iterator: Any) -> float:
        """Return the seconds that it takes to get a batch that is ready.

        It is the fastest of some passes through the relay of one batch, which is taken from the
        iterator. Raise what its `get_next` raises.
        """
        self.take(iterator)
        times = []
        for _ in range(TRIALS):
            start_s = time.perf_counter()
            batch = self._next(self.iterator._iterator_resource, self._types, self._shapes)
            times.append(time.perf_counter() - start_s)
            self._put(self._queue, batch)
        return min(times)
