"""A guard around `sess.run`: no Python exception crosses a TensorFlow graph by itself.

A producer's failure can only close the queue, and TensorFlow then raises OutOfRangeError, as at a
regular end. The session object that `start` was given therefore gets a `run` of its own, which
costs a step a few microseconds of Python and turns that error into the real one.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol

import tensorflow as tf

from fastfeed.sinks.interrupt import InterruptPipe


class Guarded(Protocol):
    """A feed behind a session's queue."""

    @property
    def wants_attention(self) -> bool:
        """True if `after_run` has anything to find out."""

    def explain(self, error: Exception) -> BaseException | None:
        """Return the failure behind an error that TensorFlow raised, or None if it is not
        fastfeed's."""

    def after_run(self) -> BaseException | None:
        """Return a failure that this run must raise after all; called after a run while `attention`
        is set."""


class SessionGuard:
    """Replaces `run` of one session, for every feed that fills a queue in it."""

    def __init__(self, session: Any) -> None:
        self._run = session.run
        self.feeds: list[Guarded] = []
        self.interrupts = InterruptPipe()
        self.attention = False  # a feed must be asked after each run
        self.inside: dict[int, float] = {}  # thread ident -> when its run began

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the session. Raise ProducerError, FeedTimeout or FeedStopped if the feed is the
        cause."""
        return self.call(self._run, args, kwargs=kwargs)

    def call(self, function: Any, args: Any, *, kwargs: Any) -> Any:
        """Return `function(*args, **kwargs)`, guarded."""
        ident = threading.get_ident()
        self.inside[ident] = time.perf_counter()
        listening = self.interrupts.enter()
        try:
            result = function(*args, **kwargs)
        except (tf.errors.OutOfRangeError, tf.errors.CancelledError) as error:
            cause = next((c for c in [f.explain(error) for f in self.feeds] if c is not None), None)
            if cause is None:
                raise
        except RuntimeError as error:
            if "REPLACED BY KeyboardInterrupt" not in str(error):
                raise
            cause = KeyboardInterrupt()  # it came while TensorFlow's binding made its own error
        else:
            cause = None
            if self.attention:
                cause = next(
                    (c for c in [f.after_run() for f in self.feeds] if c is not None), None
                )
            if cause is None:
                return result
        finally:
            if listening:
                self.interrupts.leave()
            self.inside.pop(ident, None)
        raise cause

    def unguarded(self, *args: Any, **kwargs: Any) -> Any:
        """Call the session's own run."""
        return self._run(*args, **kwargs)


def guard_of(session: Any) -> SessionGuard:
    """Return the guard of a plain session, installed the first time; a monitored one runs through
    it as well."""
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
