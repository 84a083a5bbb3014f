"""The threads of the session sink: one fills the queue, one watches for everything that can end
it."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from fastfeed.augment.device import on_host
from fastfeed.core.batch import Batch
from fastfeed.engine.feed import Feed, never_filled
from fastfeed.errors import FeedStopped
from fastfeed.sinks.session_guard import SessionGuard, guard_of
from fastfeed.sinks.tf_types import check_shapes

if TYPE_CHECKING:
    from fastfeed.sinks.session_ops import QueueOps
    from fastfeed.sinks.session_shuffle import SessionShuffle

NO_TIMEOUT_MS = 10**12
WATCH_INTERVAL_S = 0.1  # between checks of the coordinator and the session
MAX_UNACKNOWLEDGED = 4096  # batches; the feed remembers those that were not acknowledged
PUMP_GRACE_S = 0.25  # for steps to take the ready batches after a failure
INTERRUPT_GRACE_S = 0.3  # for the present step to end by itself after Ctrl-C


class Pump:
    """Moves batches from a feed into a session's queue, until the source, the session, the user or
    a failure ends it."""

    def __init__(
        self, feed: Feed, ops: QueueOps, *, shuffle: SessionShuffle | None, coord: Any, owner: Any
    ):
        self._feed = feed
        self._take = feed.take if shuffle is None else shuffle.augmented_take
        self._shuffle = shuffle
        self._ops = ops
        self._coord = coord
        # keeps a runner without another reference alive while it feeds a session
        self._owner = owner
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
        self.rows = 0  # records enqueued
        # records of each batch that was not acknowledged, with those that DALI left out
        self._enqueued_rows: deque[int] = deque()
        self._acknowledged = 0  # dequeues that were acknowledged
        self._fill_thread = threading.Thread(
            target=self._fill, name="fastfeed-enqueue", daemon=True
        )
        self._watch_thread = threading.Thread(
            target=self._watch, name="fastfeed-watch", daemon=True
        )

    def start(self, session: Any) -> None:
        """Put the guard into the session and start both threads."""
        self._session = _plain_session(session)
        self._guard: SessionGuard = guard_of(self._session)
        self._run = self._guard.unguarded
        self._run(self._ops.totals.initializer)
        self._feed.defer_acknowledgement(self._starving)
        self._guard.add(self)
        self._guard.interrupts.open()
        if self._coord is not None:
            self._coord.register_thread(self._fill_thread)
        # before a thread releases the owner
        weakref.finalize(self._owner, _stop_at_exit, weakref.ref(self))
        self._fill_thread.start()
        self._watch_thread.start()

    def stop(self, deadline: float) -> None:
        """Break the queue off and wait for its two threads, until `deadline` of
        time.perf_counter."""
        self._break_off(FeedStopped("the runner was stopped: make a new one to go on"), grace_s=0)
        for thread in (self._fill_thread, self._watch_thread):
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
            self.acknowledge_dequeues()
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

    def consumed(self) -> tuple[float, float, int, float]:
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
        """Return the state of the feed, with the batches that the session has taken."""
        with self._lock:
            self.acknowledge_dequeues()
            return self._feed.state()

    def acknowledge_dequeues(self) -> None:
        """Acknowledge the records that the session has dequeued, in order."""
        with self._lock:
            count = self._totals()[1] - self._acknowledged
            self._feed.acknowledge(sum(self._enqueued_rows.popleft() for _ in range(count)), count)
            self._acknowledged += count

    @property
    def queued(self) -> int:
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
                self.rows += rows
                self._cpu_s = time.thread_time() + (
                    0 if self._shuffle is None else self._shuffle.copier_cpu_s
                )
                del batches  # only the queue holds their slots now
            # a run that is resumed near its end may have few records
            fresh = not self._feed.resumed
            if (
                fresh
                and self.rows < self._ops.batch_size
                and self._feed.options.last_batch == "drop"
            ):
                dropped = 0 if self._shuffle is None else self._shuffle.dropped
                raise never_filled(self.rows + dropped, self._ops.batch_size)
            self._run(self._ops.finish)
            while self._feed.options.stealing and self._enqueued_rows:
                # other ranks would get what is in the queue
                if self._ended.wait(WATCH_INTERVAL_S):
                    break
            self._ended.set()  # the queue can be emptied without a thread
        except (FeedStopped, tf.errors.CancelledError):
            pass  # stop(), or the session was closed
        except BaseException as error:
            if not self._session_closed():
                self._break_off(error, grace_s=PUMP_GRACE_S)
        finally:
            if self._shuffle is not None:
                self._shuffle.close()
            self._feed.stop(0)

    def _next_batches(self) -> list[Batch]:
        """Return the next batch, and those drawn together with it; an empty list after the last."""
        found: list[Batch] = []
        while (batch := self._take()) is not None:
            self._enqueued_rows.append(self._feed.rows_of(batch))
            self._batches += 1
            if self._batches % MAX_UNACKNOWLEDGED == 0:
                self.acknowledge_dequeues()
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
            while time.perf_counter() < deadline and self.queued and not self._ended.wait(0.01):
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
        return self._guard.is_running and not self.queued

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


def _plain_bytes(leaf: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return bytes as an object array, which TensorFlow requires."""
    return leaf.astype(object) if leaf.dtype.kind == "S" else leaf


def _stop_at_exit(pump: weakref.ref[Pump]) -> None:
    """Stop the pump: daemon threads inside TensorFlow while the interpreter ends can abort the
    process."""
    alive = pump()
    if alive is not None:
        alive.stop(time.perf_counter() + 1.0)


def _plain_session(session: Any) -> Any:
    """Return the plain session inside a monitored one, whose training hooks must not run for
    enqueuing."""
    inner = getattr(session, "_tf_sess", None)  # there is no public name
    return inner() if callable(inner) else session
