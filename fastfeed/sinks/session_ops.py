"""The operations of a session's queue."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from fastfeed.core.batch import BatchSpec
from fastfeed.core.structure import rebuild
from fastfeed.errors import StateError, required

with required("TensorFlow", "tensorflow-cpu"):
    import tensorflow as tf

from fastfeed.sinks.tf_errors import error_registry
from fastfeed.sinks.tf_types import tf_dtype

NOT_STARTED = (
    "FeedRunner.start(sess) was not called in this session: the queue would stay empty for ever. A "
    "runner feeds one session; for a second one make another FeedRunner"
)


class QueueOps:
    """The queue of batches, and every operation on it, because start() may finalise the graph.

    Up to `at_once` batches are enqueued in one run, which saves wake-ups of the thread that fills
    the queue.
    """

    def __init__(
        self, spec: BatchSpec, *, capacity: int, at_once: int, batch_size: int, last_batch: str
    ) -> None:
        self.spec = spec
        self.batch_size = batch_size
        self.capacity = capacity
        self.at_once = at_once
        dtypes = [tf_dtype(leaf.dtype, leaf.path) for leaf in spec.leaves]
        with tf.device("/device:CPU:0"), tf.name_scope("fastfeed"):
            self.queue = tf.queue.FIFOQueue(capacity, dtypes, name="queue")
            self.placeholders: list[list[Any]] = []  # of each batch that is enqueued in one run
            self.enqueue: list[Any] = []  # each includes all before it
            for _ in range(at_once):
                self._add_enqueue(dtypes)
            self.finish = self.queue.close()
            self.cancel = self.queue.close(cancel_pending_enqueues=True)
            self.drain = tf.group(self.queue.dequeue())
            self.size = self.queue.size()
            self.totals, self.waited, outputs = self._timed_dequeue()
            self.totals_value = self.totals.read_value()
        for output, leaf in zip(outputs, spec.leaves, strict=True):
            output.set_shape((None if last_batch == "keep" else batch_size, *leaf.shape))
        self.inputs = rebuild(spec.structure, outputs)
        self._name_pattern = re.compile(rf"'_\d+_{re.escape(self.queue.name)}'")

    def concerns(self, error: Exception) -> bool:
        """Return True if an error of TensorFlow names this queue."""
        return bool(self._name_pattern.search(str(error)))

    def _add_enqueue(self, dtypes: list[Any]) -> None:
        self.placeholders.append(
            [
                tf.compat.v1.placeholder(dtype, (None, *leaf.shape))
                for dtype, leaf in zip(dtypes, self.spec.leaves, strict=True)
            ]
        )
        with tf.control_dependencies(self.enqueue[-1:]):
            self.enqueue.append(self.queue.enqueue(self.placeholders[-1]))

    def _timed_dequeue(self) -> tuple[Any, Any, list[Any]]:
        """Return a variable [seconds waited, dequeues], the seconds of this step, and the leaves.

        They are computed without Python. The variable is in no collection, so that it is not saved,
        and start() initialises it. A run before start() would hang; a check of the variable makes
        it an error.
        """
        totals = tf.compat.v1.Variable(
            np.zeros(2),
            dtype=tf.float64,
            name="waited",
            collections=[],
            trainable=False,
            use_resource=True,
        )
        ready = tf.raw_ops.VarIsInitializedOp(resource=totals.handle)
        self._not_started = StateError(NOT_STARTED)  # kept alive for the registry
        text = str(error_registry().mark(self._not_started))
        started = tf.raw_ops.Assert(condition=ready, data=[text])
        with tf.control_dependencies([started]):
            before = tf.timestamp()
        with tf.control_dependencies([before]):
            outputs = self.queue.dequeue()
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        with tf.control_dependencies(outputs):
            waited = tf.timestamp() - before
        update = totals.assign_add(tf.stack([waited, tf.ones_like(waited)]), read_value=False)
        with tf.control_dependencies([update]):
            return totals, waited, [tf.identity(o) for o in outputs]
