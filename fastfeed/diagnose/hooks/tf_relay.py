"""Iterator of tf.data that delivers batches which were taken from another iterator beforehand.

A function that takes an iterator waits for its batch in C++, where the wait cannot be observed. If
the batch is taken eagerly, the wait happens in Python; the function then finds the batch here.
Nothing of it touches the script's dataset, graph or random numbers, and nothing is traced again,
because both iterators have the same type.
"""

from __future__ import annotations

import sys
import uuid
from typing import Any

from fastfeed.diagnose.hooks.experiments import MAX_NBYTES

RELAY_ELEMENTS = 2**62  # elements of a dataset that does not end


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

    It is created and used eagerly, and is the input of a burst.
    """

    def __init__(self, like: Any) -> None:
        tf = sys.modules["tensorflow"]
        data = sys.modules["tensorflow.python.ops.gen_dataset_ops"]
        self._next = data.iterator_get_next
        self._put = sys.modules["tensorflow.python.ops.gen_data_flow_ops"].queue_enqueue_v2
        self._spec = like.element_spec
        self._types, self._shapes = like._flat_output_types, like._flat_output_shapes
        self._source: Any = None  # the iterator whose batches or error it holds
        self._held = 0  # batches
        self._nbytes = 0  # of the batches taken from this iterator
        self._error: Exception | None = None  # how the source ended, which is still to be raised
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
        return tf.data.experimental.from_variant(variant, self._spec).with_options(options)

    def holds(self, iterator: Any) -> bool:
        """Return True if it holds a batch or the error of an iterator."""
        return self._source is iterator and (self._held > 0 or self._error is not None)

    def relays(self, iterator: Any) -> bool:
        """Relay this iterator from now on; return False if the relay is that of another one."""
        if self._source is not None and self.holds(self._source):
            return self._source is iterator
        if self._spec != iterator.element_spec:
            return False
        self._source, self._nbytes = iterator, 0
        return True

    def take(self, *, copies: bool = True) -> bool:
        """Take the next batch, or the error in its place; return False if it can be no more.

        A copy of the batch stays valid when its producer reuses the memory.
        """
        try:
            batch = self._next(self._source._iterator_resource, self._types, self._shapes)
        except Exception as error:
            self._error = error
            return False
        self._put(self._queue, [copied_tensor(tensor) for tensor in batch] if copies else batch)
        self._held += 1
        self._nbytes += sum(t.dtype.size * (t.shape.num_elements() or 0) for t in batch)
        return self._nbytes < MAX_NBYTES

    def is_full(self) -> bool | None:
        """Return True if the data have ended: otherwise tf.data does not tell."""
        return True if self._error is not None else None

    def hand_out(self) -> Exception | None:
        """Let the next batch be taken out, or return the error in its place."""
        error = None
        if self._held:
            self._held -= 1
        else:
            error, self._error = self._error, None
        if not self._held and self._error is None:
            self._source = None  # its threads end with the last reference to it
        return error
