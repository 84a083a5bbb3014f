"""The running half of the session sink: one thread fills the queue, one watches for everything that
can end it."""

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
from fastfeed.engine.failures import never_filled
from fastfeed.engine.feed import Feed
from fastfeed.errors import FeedStopped
from fastfeed.sinks.session_guard import SessionGuard, guard_of
from fastfeed.sinks.tf_types import check_shapes

if TYPE_CHECKING:
    from fastfeed.sinks.session_ops import QueueOps
    from fastfeed.sinks.session_shuffle import SessionShuffle

NEVER_MS = 10**12
TICK_S = 0.1  # how often the watcher checks a coordinator and the session
# batches after which the feed is told: it remembers all those that it does not know of
NOTE = 4096
GRACE_S = 0.25  # after a failure, how long steps may still take what is ready in the queue
PATIENCE_S = 0.3  # after Ctrl-C, how long the step in progress may take to end by itself


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
        # a runner without another reference lives as long as it feeds a session
        self._owner = owner
        self._over = threading.Event()
        self._lock = threading.RLock()  # a signal handler may call stop() inside stop()
        self._ending: BaseException | None = None
        # dequeues when the feed was broken off: a later one raises after all
        self._taken = 0
        self._cpu_s = 0.0  # of the thread that fills the queue
        # the values of consumed() at the first dequeue
        self._warm: tuple[float, float, int, float] | None = None
        self._last = (0.0, 0)
        self._end_s: float | None = None
        self._count = 0  # batches taken
        self.rows = 0  # records enqueued
        # Records that went into each batch that a step may have taken and that the feed does not
        # know of; records that DALI left out are among them.
        self._had: deque[int] = deque()
        self._noted = 0  # dequeues that the feed knows of
        self._filler = threading.Thread(target=self._fill, name="fastfeed-enqueue", daemon=True)
        self._watcher = threading.Thread(target=self._watch, name="fastfeed-watch", daemon=True)

    def start(self, session: Any) -> None:
        """Put the guard into the session and start both threads."""
        self._session = _raw(session)
        self._guard: SessionGuard = guard_of(self._session)
        self._run = self._guard.unguarded
        self._run(self._ops.totals.initializer)
        self._feed.defer_acknowledgement(self._starving)
        self._guard.feeds.append(self)
        self._guard.attention = True
        self._guard.interrupts.open()
        if self._coord is not None:
            self._coord.register_thread(self._filler)
        # before a thread may release it
        weakref.finalize(self._owner, _at_exit, weakref.ref(self))
        self._filler.start()
        self._watcher.start()

    def stop(self, deadline: float) -> None:
        """Break the queue off and wait for its two threads, until `deadline` of
        time.perf_counter."""
        self._break_off(FeedStopped("the runner was stopped: make a new one to go on"), grace_s=0)
        for thread in (self._filler, self._watcher):
            if thread is not threading.current_thread():
                thread.join(max(0.01, deadline - time.perf_counter()))

    def explain(self, error: Exception) -> BaseException | None:
        """Return why the queue has ended, if it is this one and the end is not a regular one."""
        if not self._ops.names(error):
            return None
        self._end_s = self._end_s or time.perf_counter()
        return self._ending

    def after_run(self) -> BaseException | None:
        """Note the first dequeue, where warm-up ends; afterwards, return the failure of a run that
        waited while the feed broke."""
        waited, count = self._totals()
        if self._warm is None and count:
            self._warm = (time.perf_counter(), waited, count, self._cpu_s)
            self._guard.attention = any(f.wants_attention for f in self._guard.feeds)
        if self._ending is not None and count > self._taken:
            self._taken = count
            return self._ending
        return None

    @property
    def wants_attention(self) -> bool:
        """True if `after_run` has anything to find out."""
        return self._warm is None or self._ending is not None

    def consumed(self) -> tuple[float, float, int, float]:
        """Return seconds since the first dequeue, seconds waited in dequeues, their number, and
        seconds of CPU that filling took."""
        waited, count = self._totals()
        if self._warm is None:
            return 0.0, 0.0, 0, 0.0
        now = (self._end_s or time.perf_counter(), waited, count, self._cpu_s)
        elapsed_s, waited_s, dequeues, cpu_s = (
            n - first for n, first in zip(now, self._warm, strict=True)
        )
        return elapsed_s, waited_s, int(dequeues), cpu_s

    def state(self) -> dict[str, Any]:
        """Return the feed's state, with what the session has taken until now."""
        with self._lock:
            self.note()
            return self._feed.state()

    def note(self) -> None:
        """Acknowledge the records that the session has taken out of the queue, which keeps their
        order."""
        with self._lock:
            count = self._totals()[1] - self._noted
            self._feed.acknowledge(sum(self._had.popleft() for _ in range(count)), count)
            self._noted += count

    @property
    def queued(self) -> int:
        """Batches in the queue; 0 if the session is closed."""
        return int(self._try(self._ops.size) or 0)

    def _fill(self) -> None:
        try:
            prepared: dict[int, Callable[..., Any]] = {}
            while batches := self._some():
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
                del batches  # from here on only the queue holds their slots
            # of a run that is resumed at its end there may be little left
            fresh = not self._feed.resumed
            if (
                fresh
                and self.rows < self._ops.batch_size
                and self._feed.options.last_batch == "drop"
            ):
                dropped = 0 if self._shuffle is None else self._shuffle.dropped
                raise never_filled(self.rows + dropped, self._ops.batch_size)
            self._run(self._ops.finish)
            self._over.set()  # the rest of the queue needs no thread
        except (FeedStopped, tf.errors.CancelledError):
            pass  # by stop(), or by closing the session
        except BaseException as error:
            if not self._session_closed():
                self._break_off(error, grace_s=GRACE_S)
        finally:
            if self._shuffle is not None:
                self._shuffle.close()
            self._feed.stop(0)

    def _some(self) -> list[Batch]:
        """Return the next batch, and those drawn together with it; none after the last."""
        found: list[Batch] = []
        while (batch := self._take()) is not None:
            self._had.append(self._feed.rows_of(batch))
            self._count += 1
            if self._count % NOTE == 0:
                self.note()
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

        For a batch of 32 MNIST records Session.run with a feed_dict takes 187 us (135 of this
        thread's CPU), the prepared call 26 to 42, and 6 if TensorFlow runs it in this thread
        instead of waking one of its own. The prepared call has no public name (make_callable with
        feed_list= is as slow as run); without it, run is used.
        """
        target, places = (
            self._ops.enqueue[count - 1],
            [p for batch in self._ops.placeholders[:count] for p in batch],
        )
        make = getattr(self._session, "_make_callable_from_options", None)
        if make is None:
            return lambda *leaves: self._run(target, dict(zip(places, leaves, strict=True)))
        options = config_pb2.CallableOptions(target=[target.name])
        # waiting for room is not an operation that takes too long
        options.run_options.timeout_in_ms = NEVER_MS
        options.run_options.inter_op_thread_pool = -1  # this thread
        options.feed.extend(place.name for place in places)
        prepared: Callable[..., Any] = make(options)
        return prepared

    def _watch(self) -> None:
        while not self._over.wait(TICK_S):
            self._guard.interrupts.poll()
            if self._interrupted():
                self._break_off(FeedStopped("interrupted while waiting for input"), grace_s=0)
            if self._coord is not None and self._coord.should_stop():
                self._break_off(FeedStopped("the coordinator asked to stop"), grace_s=0)
            if self._session_closed():
                self._break_off(FeedStopped("the session was closed"), grace_s=0)
        self._guard.interrupts.close()

    def _interrupted(self) -> bool:
        """Return True if a signal waits for its handler behind a run that waits for this queue."""
        since = self._guard.inside.get(threading.main_thread().ident or 0)
        came = self._guard.interrupts.signalled_s
        if since is None or came is None or came < since:
            return False
        return time.perf_counter() - came > PATIENCE_S and self._starving()

    def _break_off(self, error: BaseException, *, grace_s: float) -> None:
        """End the queue so that a run that would wait fails now, and one that need not still gets
        its batch."""
        with self._lock:
            if self._ending is not None:
                return
            deadline = time.perf_counter() + grace_s
            while time.perf_counter() < deadline and self._enough() and not self._over.wait(0.01):
                pass
            self._taken = self._totals()[1]
            self._ending = error
            self._guard.attention = True
            if self._coord is not None and not isinstance(error, FeedStopped):
                # before any run can fail
                self._coord.request_stop(error if isinstance(error, Exception) else None)
            self._try(self._ops.cancel)
            for _ in range(self._ops.capacity):
                self._try(self._ops.drain)
        self._feed.stop(0)
        self._owner = None
        self._over.set()

    def _starving(self) -> bool:
        """Return True if a run is in progress while the queue is too short for a dequeue."""
        return bool(self._guard.inside) and not self._enough()

    def _enough(self) -> bool:
        """Return True if a dequeue would get its batch without waiting."""
        return self.queued > 0

    def _totals(self) -> tuple[float, int]:
        totals = self._try(self._ops.totals_value)
        if totals is not None:
            self._last = (float(totals[0]), int(totals[1]))
        return self._last

    def _try(self, fetch: Any) -> Any:
        """Return the value, or None if the session is closed or the queue has nothing more."""
        with contextlib.suppress(tf.errors.OpError, RuntimeError):
            return self._run(fetch)
        return None

    def _session_closed(self) -> bool:
        return bool(getattr(self._session, "_closed", False))  # no public name says it


def _plain_bytes(leaf: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return bytes as an object array: TensorFlow takes strings only so."""
    return leaf.astype(object) if leaf.dtype.kind == "S" else leaf


def _at_exit(pump: weakref.ref[Pump]) -> None:
    """Stop the pump: daemon threads inside TensorFlow while the interpreter ends can abort the
    process."""
    alive = pump()
    if alive is not None:
        alive.stop(time.perf_counter() + 1.0)


def _raw(session: Any) -> Any:
    """Return the plain session inside a monitored one: enqueuing must not run the training
    hooks."""
    inner = getattr(session, "_tf_sess", None)  # MonitoredSession has no public name for it
    return inner() if callable(inner) else session
