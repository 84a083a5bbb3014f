"""Hook of every run of TensorFlow 1's sessions, from every thread.

Monitored sessions and compiled callables are included. Nothing is added to a graph, because its
random operations take their seeds from the number of operations before them, and no configuration
changes. A step that waits at a queue is recognised from all puts and takes of the other runs.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from fastfeed.diagnose.hooks.graph_waits import has_no_options
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.patches import CallTimer, Undo, call_before, patch, undo_all
from fastfeed.diagnose.hooks.session_runs import SessionTracker

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
    tracker = SessionTracker(log)
    client = sys.modules["tensorflow.python.client.session"]
    base = client.BaseSession
    monitored = sys.modules.get("tensorflow.python.training.monitored_session")
    undos: list[Undo] = [
        tracker.release_all,
        call_before(base, "close", action=tracker.release),
        # made in each run as soon as its feed is converted
        call_before(client._FetchHandler, "__init__", action=tracker.end_conversion),
    ]
    wrappers = [
        (base, "run", _wrap_run),
        (base, "make_callable", _wrap_make_callable),
        (base, "_make_callable_from_options", _wrap_from_options),
    ]
    if monitored is not None:
        wrappers.append((monitored._HookedSession, "run", _wrap_hooked_run))
    for owner, name, wrap in wrappers:
        undos.append(patch(owner, name, wrap=functools.partial(wrap, tracker=tracker, log=log)))
    timer = CallTimer(log)
    for module_name, class_name, method in SAVERS:
        saver = getattr(sys.modules.get(module_name), class_name, None)
        if saver is not None:
            undos.append(timer.method(saver, method, kind="checkpoint"))
    return undo_all(undos)


def _tracked(
    tracker: SessionTracker, what: tuple[Any, Any, Any], *, call: Any, may_trace: bool = False
) -> Any:
    """Return the result of `call`, tracked as a run of `what`: the session, its fetches, its feeds.

    If the run may be traced, `call` gets the arguments for that.
    """
    run = tracker.begin(what[0], what[1], feeds=what[2], may_trace=may_trace)
    done = False
    try:
        result = call(**run.options) if run is not None else call()
        done = True
        return result
    finally:
        tracker.end(what[0], run, done=done)


def _wrap_run(original: Any, *, tracker: SessionTracker, log: HookLog) -> Any:
    @functools.wraps(original)
    def run(self: Any, fetches: Any, *args: Any, **kwargs: Any) -> Any:
        if not log.active:
            return original(self, fetches, *args, **kwargs)
        feeds = args[0] if args else kwargs.get("feed_dict")
        return _tracked(
            tracker,
            (self, fetches, feeds if isinstance(feeds, dict) else None),
            call=lambda **more: original(self, fetches, *args, **{**kwargs, **more}),
            may_trace=len(args) < 2 and has_no_options(kwargs),
        )

    return run


def _wrap_make_callable(original: Any, *, tracker: SessionTracker, log: HookLog) -> Any:
    @functools.wraps(original)
    def make_callable(self: Any, fetches: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(self, fetches, *args, **kwargs)
        if args or kwargs.get("feed_list") is not None:  # such a callable calls `run`
            return made
        return _wrap_callable(made, (self, fetches), tracker=tracker, log=log)

    return make_callable


def _wrap_from_options(original: Any, *, tracker: SessionTracker, log: HookLog) -> Any:
    @functools.wraps(original)
    def make(self: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(self, options, *args, **kwargs)
        what = (self, (*options.fetch, *options.target))
        return _wrap_callable(made, what, tracker=tracker, log=log, feeds=tuple(options.feed))

    return make


def _wrap_callable(
    made: Any,
    what: tuple[Any, Any],
    *,
    tracker: SessionTracker,
    log: HookLog,
    feeds: tuple[str, ...] = (),
) -> Any:
    @functools.wraps(made, assigned=())
    def call(*args: Any, **kwargs: Any) -> Any:
        if not log.active:
            return made(*args, **kwargs)
        fed = dict(zip(feeds, args, strict=False)) if feeds else None
        return _tracked(tracker, (*what, fed), call=lambda: made(*args, **kwargs))

    return call


def _wrap_hooked_run(original: Any, *, tracker: SessionTracker, log: HookLog) -> Any:
    """Wrap the run of a monitored session, whose hooks follow the run in it."""

    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if log.active:
            tracker.end_hooks()
        return result

    return run
