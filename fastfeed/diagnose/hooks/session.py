"""Hook of every run of TensorFlow 1's sessions, from every thread.

Monitored sessions are included. Nothing is added to a graph, because its random operations take
their seeds from the number of operations before them, and no configuration changes.
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
    wrappers = [(base, _wrap_run)]
    if monitored is not None:
        wrappers.append((monitored._HookedSession, _wrap_hooked_run))
    for owner, wrap in wrappers:
        undos.append(patch(owner, "run", wrap=functools.partial(wrap, tracker=tracker, log=log)))
    timer = CallTimer(log)
    for module_name, class_name, method in SAVERS:
        saver = getattr(sys.modules.get(module_name), class_name, None)
        if saver is not None:
            undos.append(timer.method(saver, method, kind="checkpoint"))
    return undo_all(undos)


def _wrap_run(original: Any, *, tracker: SessionTracker, log: HookLog) -> Any:
    """Wrap each run, which gets the arguments for a trace if it may be traced."""

    @functools.wraps(original)
    def run(self: Any, fetches: Any, *args: Any, **kwargs: Any) -> Any:
        if not log.active:
            return original(self, fetches, *args, **kwargs)
        feeds = args[0] if args else kwargs.get("feed_dict")
        seen = tracker.begin(
            self,
            fetches,
            feeds=feeds if isinstance(feeds, dict) else None,
            may_trace=len(args) < 2 and has_no_options(kwargs),
        )
        more, done = seen.options if seen is not None else {}, False
        try:
            result = original(self, fetches, *args, **{**kwargs, **more})
            done = True
            return result
        finally:
            tracker.end(self, seen, done=done)

    return run


def _wrap_hooked_run(original: Any, *, tracker: SessionTracker, log: HookLog) -> Any:
    """Wrap the run of a monitored session, whose hooks follow the run in it."""

    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if log.active:
            tracker.end_hooks()
        return result

    return run
