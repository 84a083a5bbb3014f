"""The sink for sessions of tf.compat.v1: a queue in the graph, which measures the wait of each
dequeue."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from fastfeed.core.batch import BatchSpec, with_shapes
from fastfeed.core.collate import Rebatcher
from fastfeed.core.stats import Snapshot, StageRow
from fastfeed.engine.feed import Feed
from fastfeed.errors import FeedWarning, OptionError, StateError, required
from fastfeed.options import FeedOptions, Shuffle
from fastfeed.sinks.session_ops import QueueOps

with required("TensorFlow", "tensorflow-cpu"):
    import tensorflow as tf

from fastfeed.sinks.session_pump import Pump
from fastfeed.sinks.session_shuffle import SessionShuffle

QUEUE_BATCHES = 4  # capacity of the queue in the graph


class SessionQueue:
    """Moves a feed into the queue of one graph, for one session."""

    def __init__(self, feed: Feed, *, shapes: Any, shuffle: Shuffle | None, seed: int) -> None:
        options = feed.options
        first = feed.first()
        spec = feed.spec if shapes is None else with_shapes(feed.spec, shapes)
        size = options.batch_size or first.rows
        self._shuffle = None
        if shuffle is not None:
            self._shuffle = SessionShuffle(feed, shuffle, first=first, size=size, seed=seed)
        else:
            feed.recut(Rebatcher(size, options.last_batch, pad=options.fill, across_epochs=True))
        record_nbytes = spec.record_nbytes if options.packed else first.nbytes // first.rows
        capacity = _capacity(options, nbytes=size * max(1, record_nbytes))
        at_once = 1 if self._shuffle is None else self._shuffle.at_once
        _warn_of_float64(spec, options)
        self._feed = feed
        self._graph = tf.compat.v1.get_default_graph()
        self._ops = QueueOps(
            spec, capacity=capacity, at_once=at_once, batch_size=size, last_batch=options.last_batch
        )
        self.inputs = self._ops.inputs
        self.waited = self._ops.waited
        self._pump: Pump | None = None

    def start(self, session: Any, coord: Any, *, owner: Any) -> None:
        """Begin to fill the queue. `owner` is kept alive as long as the session is fed."""
        if not (hasattr(session, "run") and hasattr(session, "graph")):
            raise OptionError(
                f"start({type(session).__name__}): must be a tf.compat.v1 Session or "
                "MonitoredSession"
            )
        if session.graph is not self._graph:
            raise StateError(
                "start(session): the session runs another graph than the one in which get_inputs() "
                "was called. Make the session inside the same `with graph.as_default()`, or pass "
                "graph="
            )
        pump = Pump(self._feed, self._ops, shuffle=self._shuffle, coord=coord, owner=owner)
        pump.start(session)
        self._pump = pump

    def stop(self, deadline: float) -> None:
        """End the queue. A run that waits for it, and every later one, raises FeedStopped."""
        if self._pump is not None:
            self._pump.stop(deadline)

    def state(self) -> dict[str, Any]:
        """Return the state of the session. Raise StateError if its queue shuffles."""
        if self._shuffle is not None:
            raise StateError(
                "state() of a session whose queue shuffles: which records it has given is unknown. "
                "Set shuffle=True for an indexable (which is shuffled by index) or shuffle=False"
            )
        return self._feed.state() if self._pump is None else self._pump.state()

    def snapshot(self) -> Snapshot:
        """Return the counters of the feed, with the measurements of the graph for the consumer."""
        now = self._feed.snapshot()
        if self._pump is None:
            return now
        elapsed_s, waited_s, batches, cpu_s = self._pump.consumed()
        records = min(
            batches * self._ops.batch_size, max(0, self._pump.rows - self._ops.batch_size)
        )
        consumed = StageRow(
            batches,
            records,
            records * self._ops.spec.record_nbytes,
            cpu_s=cpu_s,
            wait_in_s=waited_s,
            copied=now.consumed.copied,
        )
        pooled = 0 if self._shuffle is None else self._shuffle.depth
        depth = now.depth + pooled + self._pump.queued
        return replace(now, elapsed_s=elapsed_s, consumed=consumed, depth=depth)


def check_graph() -> None:
    """Raise StateError if no operation can be added to the default graph."""
    if tf.executing_eagerly():
        raise StateError(
            "get_inputs() needs a graph, and TensorFlow is in eager mode: call "
            "tf.compat.v1.disable_eager_execution() first, or build inside `with "
            "tf.Graph().as_default()`. In eager mode iterate over the runner instead"
        )
    if tf.compat.v1.get_default_graph().finalized:
        raise StateError(
            "get_inputs() in a finalised graph: call it while the graph is built, before the "
            "session"
        )


def _capacity(options: FeedOptions, *, nbytes: int) -> int:
    """Return the capacity of the queue in batches of `nbytes`. It hides the transfer of one batch;
    the feed has its own buffer."""
    return max(2, min(QUEUE_BATCHES, options.memory_nbytes // 2 // nbytes))


def _warn_of_float64(spec: BatchSpec, options: FeedOptions) -> None:
    paths = [leaf.path for leaf in spec.leaves if leaf.dtype == np.float64]
    if paths and options.dtypes is None:
        warnings.warn(
            f"{', '.join(paths)} is float64, twice the bytes of float32, and casting it in the "
            "step costs 38 ms per 9.6 MB: set dtypes='float32' to cast once, in the producers "
            "(dtypes='float64' if that is intended)",
            FeedWarning,
            stacklevel=4,
        )
