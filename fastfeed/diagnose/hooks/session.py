"""SessionTracker of TensorFlow 1, monitored ones and compiled callables included: every run, from every
thread.

Nothing is added to a graph, whose random operations take their seeds from the number of operations
before them, and no configuration changes: a step that waits at a queue is recognised from
everything that other runs put into it and take from it.
"""

from __future__ import annotations

import functools
import sys
import time
from typing import TYPE_CHECKING, Any

from fastfeed.diagnose.hooks.patches import MIN_MARK_S, CallTimer, Undo, patch, undo_all
from fastfeed.diagnose.hooks.session_trace import has_no_options
from fastfeed.diagnose.hooks.session_watch import SessionTracker
from fastfeed.steps.timeline import Mark

if TYPE_CHECKING:
    from fastfeed.diagnose.hooks.hook_log import HookLog

MODULES = ("tensorflow",)
SAVERS = (
    ("tensorflow.python.training.saver", "Saver", "save"),
    ("tensorflow.python.checkpoint.checkpoint", "Checkpoint", "save"),
    ("tensorflow.python.checkpoint.checkpoint", "Checkpoint", "write"),
    ("tensorflow.python.checkpoint.checkpoint", "CheckpointV1", "save"),
    ("tensorflow.python.checkpoint.checkpoint", "CheckpointV1", "write"),
)


def install(module: Any, log: HookLog) -> Undo:
    """Observe every session of the process."""
    sessions = SessionTracker(log)
    base = sys.modules["tensorflow.python.client.session"].BaseSession
    undos: list[Undo] = [
        sessions.release,
        patch(base, "run", wrap=lambda plain: _run(plain, sessions, log=log)),
        patch(
            base,
            "make_callable",
            wrap=lambda plain: _make_callable(plain, sessions, log=log),
        ),
        patch(
            base,
            "_make_callable_from_options",
            wrap=lambda plain: _from_options(plain, sessions, log=log),
        ),
        patch(base, "_call_tf_sessionrun", wrap=lambda plain: _entered(plain, sessions)),
        patch(base, "close", wrap=lambda plain: _close(plain, sessions)),
    ]
    monitored = sys.modules.get("tensorflow.python.training.monitored_session")
    if monitored is not None:
        hooked = monitored._HookedSession
        undos.append(patch(hooked, "run", wrap=lambda plain: _hooked(plain, sessions, log=log)))
    timed = CallTimer(log)
    for name, owner, method in SAVERS:
        saver = getattr(sys.modules.get(name), owner, None)
        if saver is not None:
            undos.append(timed.method(saver, method, kind="checkpoint"))
    return undo_all(undos)


def _followed(
    sessions: SessionTracker, what: tuple[Any, Any, Any], *, call: Any, traces: bool = False
) -> Any:
    """Make `call()` as a run of `what`: the session, its fetches, its feeds; if it may be traced,
    with the arguments for that."""
    run = sessions.begin(what[0], what[1], feeds=what[2])
    done = False
    try:
        result = call(**sessions.tracing(run)) if traces else call()
        done = True
        return result
    finally:
        sessions.end(run, done=done)


def _run(plain: Any, sessions: SessionTracker, *, log: HookLog) -> Any:
    @functools.wraps(plain)
    def run(self: Any, fetches: Any, *args: Any, **kwargs: Any) -> Any:
        if not log.active:
            return plain(self, fetches, *args, **kwargs)
        feeds = args[0] if args else kwargs.get("feed_dict")
        what = (self, fetches, feeds if isinstance(feeds, dict) else None)
        traces = len(args) < 2 and has_no_options(kwargs)
        return _followed(
            sessions,
            what,
            call=lambda **more: plain(self, fetches, *args, **{**kwargs, **more}),
            traces=traces,
        )

    return run


def _make_callable(plain: Any, sessions: SessionTracker, *, log: HookLog) -> Any:
    @functools.wraps(plain)
    def make_callable(self: Any, fetches: Any, *args: Any, **kwargs: Any) -> Any:
        made = plain(self, fetches, *args, **kwargs)
        if args or kwargs.get("feed_list") is not None:  # it goes through `run`
            return made
        return _callable(made, (self, fetches), sessions=sessions, log=log)

    return make_callable


def _from_options(plain: Any, sessions: SessionTracker, *, log: HookLog) -> Any:
    @functools.wraps(plain)
    def make(self: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        made = plain(self, options, *args, **kwargs)
        fetches = (*options.fetch, *options.target)
        return _callable(
            made, (self, fetches), sessions=sessions, log=log, feeds=tuple(options.feed)
        )

    return make


def _callable(
    made: Any,
    what: tuple[Any, Any],
    *,
    sessions: SessionTracker,
    log: HookLog,
    feeds: tuple[str, ...] = (),
) -> Any:
    @functools.wraps(made, assigned=())
    def call(*args: Any, **kwargs: Any) -> Any:
        if not log.active:
            return made(*args, **kwargs)
        fed = dict(zip(feeds, args, strict=False)) if feeds else None
        return _followed(sessions, (*what, fed), call=lambda: made(*args, **kwargs))

    return call


def _entered(plain: Any, sessions: SessionTracker) -> Any:
    @functools.wraps(plain)
    def call(*args: Any) -> Any:
        sessions.enters()
        return plain(*args)

    return call


def _close(plain: Any, sessions: SessionTracker) -> Any:
    @functools.wraps(plain)
    def close(self: Any) -> Any:
        sessions.forget(self)
        return plain(self)

    return close


def _hooked(plain: Any, sessions: SessionTracker, *, log: HookLog) -> Any:
    """Wrap a monitored session, to count what its hooks take before and after the run."""

    @functools.wraps(plain)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not log.active:
            return plain(self, *args, **kwargs)
        sessions.local.hooked = None
        start_s = time.perf_counter()
        result = plain(self, *args, **kwargs)
        end_s = time.perf_counter()
        inner = sessions.local.hooked
        if inner is not None:
            for mark in (
                Mark("callback", start_s, inner[0], "hooks"),
                Mark("callback", inner[1], end_s, "hooks"),
            ):
                if mark.end_s - mark.start_s > MIN_MARK_S:
                    log.timeline.marks.append(mark)
        return result

    return run
