"""The sink for sessions of tf.compat.v1: a queue in the graph, and the waiting time of each dequeue beside it."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from fastfeed.batch import BYTES, Batch, BatchSpec, with_shapes
from fastfeed.collate import Rebatcher
from fastfeed.errors import FeedWarning, MissingExtra, OptionError, SpecError, StateError
from fastfeed.feed import Feed
from fastfeed.options import FeedOptions, Shuffle
from fastfeed.stats import Snapshot, StageRow
from fastfeed.structure import rebuild

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtra("TensorFlow", "tensorflow-cpu") from error

from fastfeed.sinks.session_pump import Pump

FIFO_NBYTES = 2**28  # a queue that does not shuffle only smooths; more would be memory for nothing
NOT_STARTED = "FeedRunner.start(sess) was not called in this session: the queue would stay empty for ever"


class QueueOps:
    """The queue, and every operation on it that the feed will need: after start() the graph may be final."""

    def __init__(self, spec: BatchSpec, *, capacity: int, shuffle: Shuffle | None, batch: tuple[int, str], seed: int):
        self.batch_size, last_batch = batch
        self.min_after_dequeue = shuffle.min_after_dequeue if shuffle else 0
        with tf.device("/device:CPU:0"), tf.name_scope("fastfeed"):
            self.queue = _queue(spec, capacity, shuffle=shuffle, seed=seed)
            self.placeholders = [
                tf.compat.v1.placeholder(_tf_dtype(leaf.dtype, leaf.path), (None, *leaf.shape)) for leaf in spec.leaves
            ]
            self.enqueue = self.queue.enqueue_many(self.placeholders)
            self.record = [tf.compat.v1.placeholder(p.dtype, p.shape[1:]) for p in self.placeholders]
            self.enqueue_one = self.queue.enqueue(self.record)  # enqueue_many crashes TensorFlow on records of size 0
            self.finish = self.queue.close()
            self.cancel = self.queue.close(cancel_pending_enqueues=True)
            self.drain = self.queue.dequeue_up_to(capacity)
            self.size = self.queue.size()
            self.totals, self.waited, outputs = self._timed_dequeue(last_batch)
            self.totals_value = self.totals.read_value()
        for output, leaf in zip(outputs, spec.leaves, strict=True):
            output.set_shape((None if last_batch == "keep" else self.batch_size, *leaf.shape))
        self.inputs = rebuild(spec.structure, outputs)
        self._named = re.compile(rf"'_\d+_{re.escape(self.queue.name)}'")

    def names(self, error: Exception) -> bool:
        """Whether an error of TensorFlow speaks of this queue."""
        return bool(self._named.search(str(error)))

    def _timed_dequeue(self, last_batch: str) -> tuple[Any, Any, list[Any]]:
        """A variable [seconds waited, dequeues], the seconds of this step, and the leaves: no Python takes part.

        The variable is in no collection (nothing saves it) and is initialised by start(); asking for that first
        turns a run before start(), which used to hang for ever, into an error.
        """
        totals = tf.compat.v1.Variable(
            np.zeros(2), dtype=tf.float64, name="waited", collections=[], trainable=False, use_resource=True
        )
        ready = tf.raw_ops.VarIsInitializedOp(resource=totals.handle)
        started = tf.raw_ops.Assert(condition=ready, data=[NOT_STARTED])
        with tf.control_dependencies([started]):
            before = tf.timestamp()
        with tf.control_dependencies([before]):
            take = self.queue.dequeue_up_to if last_batch == "keep" else self.queue.dequeue_many
            outputs = take(self.batch_size)
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        with tf.control_dependencies(outputs):
            waited = tf.timestamp() - before
        update = totals.assign_add(tf.stack([waited, tf.ones_like(waited)]), read_value=False)
        with tf.control_dependencies([update]):
            return totals, waited, [tf.identity(o) for o in outputs]


class SessionQueue:
    """Carries a feed into the queue of one graph, for one session."""

    def __init__(self, feed: Feed, *, shapes: Any, shuffle: Shuffle | None, seed: int) -> None:
        options = feed.options
        first = feed.first()
        spec = feed.spec if shapes is None else with_shapes(feed.spec, shapes)
        size = options.batch_size or first.rows
        if spec.ragged:
            # Equal batches at the entrance leave as they came in: the padding is ours, with the user's number.
            feed.deliver(Rebatcher(size, "keep", pad=options.pad, across_epochs=True))
        capacity = _capacity(options, shuffle, spec=spec, first=first, size=size)
        _say_float64(spec, options)
        self._feed = feed
        feed.delivers = False
        self._shuffled = shuffle is not None
        self._spec = spec
        self._graph = tf.compat.v1.get_default_graph()
        self._ops = QueueOps(spec, capacity=capacity, shuffle=shuffle, batch=(size, options.last_batch), seed=seed)
        self.inputs = self._ops.inputs
        self.waited = self._ops.waited
        self._pump: Pump | None = None

    def start(self, session: Any, coord: Any, *, owner: Any) -> None:
        """Begins to fill the queue; `owner` lives as long as the session is fed."""
        if not (hasattr(session, "run") and hasattr(session, "graph")):
            raise OptionError(f"start({type(session).__name__}): needed a tf.compat.v1 Session or MonitoredSession")
        if session.graph is not self._graph:
            raise StateError(
                "start(session): the session runs another graph than the one in which get_inputs() was called. Make "
                "the session inside the same `with graph.as_default()`, or pass graph="
            )
        pump = Pump(self._feed, self._ops, spec=self._spec, coord=coord, owner=owner)
        pump.start(session)
        self._pump = pump

    def stop(self, deadline: float) -> None:
        """Ends the queue; a run that waits, and every later one that takes from it, raises FeedStopped."""
        if self._pump is not None:
            self._pump.stop(deadline)

    def state(self) -> dict[str, Any]:
        """What the session has taken out of the queue; StateError where it shuffles."""
        if self._shuffled:
            raise StateError(
                "state() of a session whose queue shuffles: nobody can tell which records it has given. Say "
                "shuffle=True for an indexable (which is shuffled by index) or shuffle=False"
            )
        return self._feed.state() if self._pump is None else self._pump.state()

    def snapshot(self) -> Snapshot:
        """The feed's counters, with what the graph measured about its consumer."""
        now = self._feed.snapshot()
        if self._pump is None:
            return now
        elapsed_s, waited_s, batches = self._pump.consumed()
        records = min(batches * self._ops.batch_size, max(0, self._pump.rows - self._ops.batch_size))
        consumed = StageRow(batches, records, records * self._spec.record_nbytes, wait_in_s=waited_s)
        depth = now.depth + self._pump.queued_records() // self._ops.batch_size
        return replace(now, elapsed_s=elapsed_s, consumed=consumed, depth=depth)


def check_graph() -> None:
    """StateError where no operation can be added to the default graph."""
    if tf.executing_eagerly():
        raise StateError(
            "get_inputs() needs a graph, and TensorFlow is in eager mode: call tf.compat.v1.disable_eager_execution() "
            "first, or build inside `with tf.Graph().as_default()`. In eager mode iterate over the runner instead"
        )
    if tf.compat.v1.get_default_graph().finalized:
        raise StateError("get_inputs() in a finalised graph: call it while the graph is built, before the session")


def _queue(spec: BatchSpec, capacity: int, *, shuffle: Shuffle | None, seed: int) -> Any:
    dtypes = [_tf_dtype(leaf.dtype, leaf.path) for leaf in spec.leaves]
    shapes = [leaf.shape for leaf in spec.leaves]
    if spec.ragged:
        return tf.queue.PaddingFIFOQueue(capacity, dtypes, shapes, name="queue")
    if shuffle is None:
        return tf.queue.FIFOQueue(capacity, dtypes, shapes, name="queue")
    return tf.queue.RandomShuffleQueue(
        capacity, shuffle.min_after_dequeue, dtypes, shapes, seed=seed % 2**31, name="queue"
    )


def _capacity(options: FeedOptions, shuffle: Shuffle | None, *, spec: BatchSpec, first: Batch, size: int) -> int:
    """The queue's size in records; OptionError where the shuffle's does not fit the batch or the memory."""
    record_nbytes = max(1, first.nbytes // first.rows)
    if shuffle is None:
        return max(4 * size, min(2000, options.memory_nbytes // 2 // record_nbytes, FIFO_NBYTES // record_nbytes))
    if spec.ragged:
        raise OptionError(
            f"shuffle={options.shuffle!r} with pad=: a RandomShuffleQueue holds records of one shape only. Leave "
            "shuffle out and shuffle in the source, or make one shape in transform="
        )
    least = shuffle.min_after_dequeue + size
    if shuffle.capacity < least:
        raise OptionError(
            f"a batch of {size} records does not fit into the shuffle queue: needed capacity >= min_after_dequeue + "
            f"batch_size = {least}, there is {shuffle}. For instance shuffle=Shuffle(capacity={least + 2 * size}, "
            f"min_after_dequeue={shuffle.min_after_dequeue})"
        )
    if shuffle.capacity * record_nbytes > options.memory_nbytes:
        raise OptionError(
            f"{shuffle.capacity} records of {record_nbytes} bytes do not fit into the {options.memory_nbytes} bytes "
            "that batches in flight may take: choose a smaller shuffle=Shuffle(capacity=..., min_after_dequeue=...), "
            "or raise memory="
        )
    return shuffle.capacity


def _say_float64(spec: BatchSpec, options: FeedOptions) -> None:
    paths = [leaf.path for leaf in spec.leaves if leaf.dtype == np.float64]
    if paths and options.dtypes is None:
        warnings.warn(
            f"{', '.join(paths)} is float64, twice the bytes of float32, and casting it in the step costs 38 ms per "
            "9.6 MB: say dtypes='float32' to cast once, in the producers (dtypes='float64' if you mean it)",
            FeedWarning,
            stacklevel=4,
        )


def _tf_dtype(dtype: np.dtype[Any], path: str) -> Any:
    if dtype == BYTES:
        return tf.string
    try:
        return tf.as_dtype(dtype)
    except TypeError:
        raise SpecError(f"{path} has dtype {dtype}, which TensorFlow does not have: cast it with dtypes=") from None
