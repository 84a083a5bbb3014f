"""A guard around `sess.run`: Python exceptions cannot pass through a TensorFlow graph.

The failure of a producer can only close the queue, and TensorFlow then raises OutOfRangeError, as
at a regular end. The `run` of the session object is therefore replaced. The new one raises the
original error, and costs a step a few microseconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import Any, Protocol

import tensorflow as tf

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class InterruptPipe:
    """Reports signals that arrive during a call of the main thread, to other threads.

    Python runs signal handlers only between bytecodes of the main thread, so a call that blocks in
    C delays Ctrl-C indefinitely. The C part of the handler writes to the wakeup file descriptor at
    once. That descriptor is set only during the call, and its bytes are passed on to the one that
    was set before (of asyncio, for example).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._fds: tuple[int, int] | None = None
        self._before = -1
        self._inside = False
        # time of the last ending signal during the present call
        self.signalled_s: float | None = None

    def open(self) -> None:
        """Add a user; the first one creates the pipe."""
        with self._lock:
            self._users += 1
            if self._fds is None:
                self._fds = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def close(self) -> None:
        """Remove a user. After the last one the file descriptors are closed, at the latest when the
        main thread leaves."""
        with self._lock:
            self._users -= 1
            self._release()

    def enter(self) -> bool:
        """Begin to listen, in the main thread and if there is a user. Return True if `leave` must
        follow."""
        fds = self._fds
        if (
            fds is None
            or not self._users
            or threading.current_thread() is not threading.main_thread()
        ):
            return False
        self._inside = True
        self.signalled_s = None
        self._before = signal.set_wakeup_fd(fds[1], warn_on_full_buffer=False)
        return True

    def leave(self) -> None:
        """End what `enter` began."""
        signal.set_wakeup_fd(self._before)
        self.poll()
        with self._lock:
            self._inside = False
            self._release()

    def poll(self) -> None:
        """Read the signals without waiting, and note an ending one with a handler in Python."""
        with self._lock:
            if self._fds is None:
                return
            with contextlib.suppress(BlockingIOError):
                signals = os.read(self._fds[0], 512)
                if self._before != -1:
                    with contextlib.suppress(OSError):
                        os.write(self._before, signals)
                if any(s in signals and callable(signal.getsignal(s)) for s in ENDING_SIGNALS):
                    self.signalled_s = time.perf_counter()

    def _release(self) -> None:
        if self._fds is not None and not self._users and not self._inside:
            for fd in self._fds:
                os.close(fd)
            self._fds = None


class Guarded(Protocol):
    """A feed behind a session's queue."""

    @property
    def wants_attention(self) -> bool:
        """True if `after_run` must be called."""

    def explain(self, error: Exception) -> BaseException | None:
        """Return the failure that caused an error of TensorFlow, or None if it is not of this
        feed."""

    def after_run(self) -> BaseException | None:
        """Return a failure that the last run must raise, or None. Called after each run while a
        feed wants attention."""


class SessionGuard:
    """Replaces `run` of one session, for all feeds that fill a queue in it."""

    def __init__(self, session: Any) -> None:
        self._run = session.run
        self._feeds: list[Guarded] = []
        self.interrupts = InterruptPipe()
        self._attention = False  # `after_run` of the feeds is called after each run
        self._running: dict[int, float] = {}  # thread ident -> start time of its run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the session. Raise ProducerError, FeedTimeout or FeedStopped if the feed is the
        cause."""
        return self.call(self._run, args, kwargs=kwargs)

    def call(self, function: Any, args: Any, *, kwargs: Any) -> Any:
        """Return `function(*args, **kwargs)`, guarded."""
        ident = threading.get_ident()
        self._running[ident] = time.perf_counter()
        listening = self.interrupts.enter()
        try:
            result = function(*args, **kwargs)
        except (tf.errors.OutOfRangeError, tf.errors.CancelledError) as error:
            cause = next(filter(None, [feed.explain(error) for feed in self._feeds]), None)
            if cause is None:
                raise
        except RuntimeError as error:
            if "REPLACED BY KeyboardInterrupt" not in str(error):
                raise
            cause = KeyboardInterrupt()  # raised while TensorFlow made its error
        else:
            cause = None
            if self._attention:
                cause = next(filter(None, [feed.after_run() for feed in self._feeds]), None)
            if cause is None:
                return result
        finally:
            if listening:
                self.interrupts.leave()
            self._running.pop(ident, None)
        raise cause

    def add(self, feed: Guarded) -> None:
        """Add a feed, whose `after_run` is called after the next run."""
        self._feeds.append(feed)
        self._attention = True

    def request_attention(self) -> None:
        """Call `after_run` of the feeds after the next run."""
        self._attention = True

    def update_attention(self) -> None:
        """Call `after_run` only as long as a feed wants it."""
        self._attention = any(feed.wants_attention for feed in self._feeds)

    @property
    def is_running(self) -> bool:
        """True if a run is in progress, in any thread."""
        return bool(self._running)

    def running_since(self, ident: int | None) -> float | None:
        """Return the start time of the present run of a thread, or None."""
        return None if ident is None else self._running.get(ident)

    def unguarded(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original `run` of the session."""
        return self._run(*args, **kwargs)


def guard_of(session: Any) -> SessionGuard:
    """Return the guard of a plain session, which is installed the first time. Monitored sessions
    use it as well."""
    guard = session.__dict__.get("run")
    if not isinstance(guard, SessionGuard):
        guard = SessionGuard(session)
        session.run = guard
        session.make_callable = _guarded_callables(session.make_callable, guard)
        session.partial_run = _guarded(session.partial_run, guard)
    return guard


def _guarded(function: Any, guard: SessionGuard) -> Any:
    return lambda *args, **kwargs: guard.call(function, args, kwargs=kwargs)


def _guarded_callables(make: Any, guard: SessionGuard) -> Any:
    return lambda *args, **kwargs: _guarded(make(*args, **kwargs), guard)
