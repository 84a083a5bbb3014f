"""The sink for sessions of tf.compat.v1: a queue in the graph, which measures the wait of each
dequeue, a thread that fills it, and one that watches for everything that can end it."""

from __future__ import annotations

import contextlib
import re
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fastfeed.augment.device import on_host
from fastfeed.core.batch import Batch, BatchSpec, with_shapes
from fastfeed.core.collate import Rebatcher
from fastfeed.core.stats import Snapshot, StageRow
from fastfeed.core.structure import rebuild
from fastfeed.engine.feed import Feed
from fastfeed.errors import FeedStopped, FeedWarning, OptionError, StateError, required
from fastfeed.options import FeedOptions, Shuffle

with required("TensorFlow", "tensorflow-cpu"):
    import tensorflow as tf
    from tensorflow.core.protobuf import config_pb2

from fastfeed.sinks.session_guard import SessionGuard, guard_of
from fastfeed.sinks.session_shuffle import SessionShuffle
from fastfeed.sinks.tf_errors import error_registry
from fastfeed.sinks.tf_types import check_shapes, tf_dtype

QUEUE_BATCHES = 4  # capacity of the queue in the graph
NO_TIMEOUT_MS = 10**12
WATCH_INTERVAL_S = 0.1  # between checks of the coordinator and the session
MAX_UNACKNOWLEDGED = 4096  # batches; the feed remembers those that were not acknowledged
QUEUE_GRACE_S = 0.25  # for steps to take the ready batches after a failure
INTERRUPT_GRACE_S = 0.3  # for the present step to end by itself after Ctrl-C
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


class SessionQueue:
    """Moves a feed into the queue of one graph, for one session, until the source, the session, the
    user or a failure ends it."""

    def __init__(self, feed: Feed, *, shapes: Any, shuffle: Shuffle | None, seed: int) -> None:
        options = feed.options
        first = feed.first()
        spec = feed.spec if shapes is None else with_shapes(feed.spec, shapes)
        size = options.batch_size or first.rows
        self._shuffle = None
        if shuffle is not None:
            self._shuffle = SessionShuffle(feed, shuffle, first=first, size=size, seed=seed)
            feed.insert(self._shuffle)
        elif options.batch_size is not None or options.last_batch == "drop":
            feed.recut(
                Rebatcher(size, options.last_batch, pad=options.joined_fill, across_epochs=True)
            )
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
        self._session: Any = None  # the plain one, once it was started
        self._coord: Any = None
        # keeps a runner without another reference alive while it feeds a session
        self._owner: Any = None
        self._threads: list[threading.Thread] = []
        self._ended = threading.Event()
        self._lock = threading.RLock()  # a signal handler may call stop() inside stop()
        self._failure: BaseException | None = None
        # dequeues until the failure; a run with a later one raises it
        self._dequeues_at_failure = 0
        self._cpu_s = 0.0  # of the thread that fills the queue
        # time, seconds waited, dequeues and CPU seconds at the first dequeue
        self._first_totals: tuple[float, float, int, float] | None = None
        self._last_totals = (0.0, 0)
        self._end_s: float | None = None
        self._batches = 0  # batches of the feed
        self._rows = 0  # records enqueued
        self._acknowledged = 0  # dequeues that were acknowledged

    def start(self, session: Any, coord: Any, *, owner: Any) -> None:
        """Put the guard into the session and begin to fill the queue. `owner` is kept alive as long
        as the session is fed."""
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
        plain = _plain_session(session)
        self._guard: SessionGuard = guard_of(plain)
        self._run = self._guard.unguarded
        self._run(self._ops.totals.initializer)
        self._session, self._coord, self._owner = plain, coord, owner
        self._feed.defer_acknowledgement(self._starving)
        self._guard.add(self)
        self._guard.interrupts.open()
        # a thread refers to this until it ends
        self._threads = [
            threading.Thread(target=self._fill, name="fastfeed-enqueue", daemon=True),
            threading.Thread(target=self._watch, name="fastfeed-watch", daemon=True),
        ]
        if coord is not None:
            coord.register_thread(self._threads[0])
        # before a thread releases the owner
        weakref.finalize(owner, _stop_at_exit, weakref.ref(self))
        for thread in self._threads:
            thread.start()

    def stop(self, deadline: float) -> None:
        """End the queue, and its threads until `deadline` of time.perf_counter. A run that waits
        for it, and every later one, raises FeedStopped."""
        if self._session is None:
            return
        self._break_off(FeedStopped("the runner was stopped: make a new one to go on"), grace_s=0)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.01, deadline - time.perf_counter()))

    def explain(self, error: Exception) -> BaseException | None:
        """Return the failure that ended the queue, if the error is of this queue."""
        if not self._ops.concerns(error):
            return None
        self._end_s = self._end_s or time.perf_counter()
        return self._failure

    def after_run(self) -> BaseException | None:
        """Note the first dequeue, which ends the warm-up. Return the failure of a run that waited
        while the feed failed, or None. Other ranks of the job hear what the run has consumed."""
        waited, count = self._totals()
        if self._feed.options.stealing:
            self._acknowledge_dequeues()
        if self._first_totals is None and count:
            self._first_totals = (time.perf_counter(), waited, count, self._cpu_s)
            self._guard.update_attention()
        if self._failure is not None and count > self._dequeues_at_failure:
            self._dequeues_at_failure = count
            return self._failure
        return None

    @property
    def wants_attention(self) -> bool:
        """True if `after_run` must be called."""
        started = self._first_totals is not None
        return not started or self._failure is not None or self._feed.options.stealing

    def _consumed(self) -> tuple[float, float, int, float]:
        """Return seconds since the first dequeue, seconds waited in dequeues, their number, and
        seconds of CPU for filling."""
        waited, count = self._totals()
        if self._first_totals is None:
            return 0.0, 0.0, 0, 0.0
        now = (self._end_s or time.perf_counter(), waited, count, self._cpu_s)
        elapsed_s, waited_s, dequeues, cpu_s = (
            n - first for n, first in zip(now, self._first_totals, strict=True)
        )
        return elapsed_s, waited_s, int(dequeues), cpu_s

    def state(self) -> dict[str, Any]:
        """Return the state of the feed, with the batches that the session has taken. Raise
        StateError if its queue shuffles."""
        with self._lock:
            if self._session is not None:
                self._acknowledge_dequeues()
            return self._feed.state()

    def _acknowledge_dequeues(self) -> None:
        """Acknowledge the records that the session has dequeued, in order."""
        with self._lock:
            count = self._totals()[1] - self._acknowledged
            self._feed.acknowledge(count)
            self._acknowledged += count

    @property
    def _queued(self) -> int:
        """Batches in the queue; 0 if the session is closed."""
        return int(self._run_or_none(self._ops.size) or 0)

    def _fill(self) -> None:
        try:
            prepared: dict[int, Callable[..., Any]] = {}
            while batches := self._next_batches():
                count = len(batches)
                if count not in prepared:
                    prepared[count] = self._enqueue_function(count)
                rows = sum(batch.rows for batch in batches)
                prepared[count](
                    *[_plain_bytes(leaf) for batch in batches for leaf in on_host(batch).leaves]
                )
                self._rows += rows
                self._cpu_s = time.thread_time() + (
                    0 if self._shuffle is None else self._shuffle.copier_cpu_s
                )
                del batches  # only the queue holds their slots now
            self._run(self._ops.finish)
            while self._feed.options.stealing and self._feed.owes:
                # other ranks would get what is in the queue
                if self._ended.wait(WATCH_INTERVAL_S):
                    break
            self._ended.set()  # the queue can be emptied without a thread
        except (FeedStopped, tf.errors.CancelledError):
            pass  # stop(), or the session was closed
        except BaseException as error:
            if not self._session_closed():
                self._break_off(error, grace_s=QUEUE_GRACE_S)
        finally:
            if self._shuffle is not None:
                self._shuffle.close()
            self._feed.stop(0)

    def _next_batches(self) -> list[Batch]:
        """Return the next batch, and those drawn together with it; an empty list after the last."""
        found: list[Batch] = []
        while (batch := self._feed.take()) is not None:
            self._batches += 1
            if self._batches % MAX_UNACKNOWLEDGED == 0:
                self._acknowledge_dequeues()
            if self._ops.spec.ragged:
                check_shapes(batch, self._ops.spec, knob="get_inputs(shapes=...)")
            found.append(batch)
            if (
                len(found) == self._ops.at_once
                or self._shuffle is None
                or not self._shuffle.has_drawn
            ):
                break
        return found

    def _enqueue_function(self, count: int) -> Callable[..., Any]:
        """Return the enqueue of `count` batches as a function of their leaves.

        For a batch of 32 MNIST records Session.run with a feed_dict takes 187 us (135 of them CPU
        of this thread), the prepared call 26 to 42, and 6 if TensorFlow runs it in this thread. The
        prepared call has no public name (make_callable with feed_list= is as slow as run); without
        it, run is used.
        """
        target = self._ops.enqueue[count - 1]
        places = [p for batch in self._ops.placeholders[:count] for p in batch]
        make = getattr(self._session, "_make_callable_from_options", None)
        if make is None:
            return lambda *leaves: self._run(target, dict(zip(places, leaves, strict=True)))
        options = config_pb2.CallableOptions(target=[target.name])
        # waiting for room is not an operation that takes too long
        options.run_options.timeout_in_ms = NO_TIMEOUT_MS
        options.run_options.inter_op_thread_pool = -1  # this thread
        options.feed.extend(place.name for place in places)
        prepared: Callable[..., Any] = make(options)
        return prepared

    def _watch(self) -> None:
        while not self._ended.wait(WATCH_INTERVAL_S):
            self._guard.interrupts.poll()
            if self._interrupted():
                self._break_off(FeedStopped("interrupted while waiting for input"), grace_s=0)
            if self._coord is not None and self._coord.should_stop():
                self._break_off(FeedStopped("the coordinator asked to stop"), grace_s=0)
            if self._session_closed():
                self._break_off(FeedStopped("the session was closed"), grace_s=0)
        self._guard.interrupts.close()

    def _interrupted(self) -> bool:
        """Return True if the handler of a signal is delayed by a run that waits for this queue."""
        run_s = self._guard.running_since(threading.main_thread().ident)
        signal_s = self._guard.interrupts.signalled_s
        if run_s is None or signal_s is None or signal_s < run_s:
            return False
        return time.perf_counter() - signal_s > INTERRUPT_GRACE_S and self._starving()

    def _break_off(self, error: BaseException, *, grace_s: float) -> None:
        """End the queue: a run that would wait fails, and one that need not wait gets its batch."""
        with self._lock:
            if self._failure is not None:
                return
            deadline = time.perf_counter() + grace_s
            while time.perf_counter() < deadline and self._queued and not self._ended.wait(0.01):
                pass
            self._dequeues_at_failure = self._totals()[1]
            self._failure = error
            self._guard.request_attention()
            if self._coord is not None and not isinstance(error, FeedStopped):
                # before any run can fail
                self._coord.request_stop(error if isinstance(error, Exception) else None)
            self._run_or_none(self._ops.cancel)
            for _ in range(self._ops.capacity):
                self._run_or_none(self._ops.drain)
        self._feed.stop(0)
        self._owner = None
        self._ended.set()

    def _starving(self) -> bool:
        """Return True if a run is in progress while the queue is empty."""
        return self._guard.is_running and not self._queued

    def _totals(self) -> tuple[float, int]:
        totals = self._run_or_none(self._ops.totals_value)
        if totals is not None:
            self._last_totals = (float(totals[0]), int(totals[1]))
        return self._last_totals

    def _run_or_none(self, fetch: Any) -> Any:
        """Return the value, or None if the session is closed or the queue has ended."""
        with contextlib.suppress(tf.errors.OpError, RuntimeError):
            return self._run(fetch)
        return None

    def _session_closed(self) -> bool:
        return bool(getattr(self._session, "_closed", False))  # there is no public name

    def snapshot(self) -> Snapshot:
        """Return the counters of the feed, with the measurements of the graph for the consumer."""
        now = self._feed.snapshot()
        if self._session is None:
            return now
        elapsed_s, waited_s, batches, cpu_s = self._consumed()
        records = min(batches * self._ops.batch_size, max(0, self._rows - self._ops.batch_size))
        consumed = StageRow(
            batches,
            records,
            records * self._ops.spec.record_nbytes,
            cpu_s=cpu_s,
            wait_in_s=waited_s,
            copied=now.consumed.copied,
        )
        depth = now.depth + self._queued
        return replace(now, elapsed_s=elapsed_s, consumed=consumed, depth=depth, taken_s=elapsed_s)


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


def _plain_bytes(leaf: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return bytes as an object array, which TensorFlow requires."""
    return leaf.astype(object) if leaf.dtype.kind == "S" else leaf


def _stop_at_exit(queue: weakref.ref[SessionQueue]) -> None:
    """Stop the queue: daemon threads inside TensorFlow while the interpreter ends can abort the
    process."""
    alive = queue()
    if alive is not None:
        alive.stop(time.perf_counter() + 1.0)


def _plain_session(session: Any) -> Any:
    """Return the plain session inside a monitored one, whose training hooks must not run for
    enqueuing."""
    inner = getattr(session, "_tf_sess", None)  # there is no public name
    return inner() if callable(inner) else session
