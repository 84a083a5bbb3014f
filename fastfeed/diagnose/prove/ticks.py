"""What a run's copy of a script calls where no hook sees its steps or its batches."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from threading import Lock, get_ident
from time import perf_counter
from typing import Any

from fastfeed.diagnose.prove.digests import as_fed, is_number
from fastfeed.steps.recorder import site_of
from fastfeed.steps.timeline import Step
from fastfeed.steps.watch import watch

_LOCK = Lock()  # several threads may fill a queue


def tick() -> None:
    """Record that an iteration of a loop begins, and the one before it has ended."""
    log, thread, now = watch.log, get_ident(), perf_counter()
    if log is None or not log.active:
        return
    frame = sys._getframe(1)
    key = ("tick", frame.f_code, thread)
    loop = log.timeline.loop(key, name="loop", kind="watch", thread=thread)
    loop.where = loop.where or site_of(frame)
    begin_s, _ = log.pending_waits.get(key, (now, 0.0))  # type: ignore[call-overload]
    if begin_s < now:
        loop.add(Step(begin_s, now, 0.0), max_steps=log.max_steps)
    log.pending_waits[key] = (now, 0.0)  # type: ignore[index]


def batch(made: tuple[Any, ...]) -> None:
    """Take the checksum of a batch, if the run is for that. Numbers alone, such as the count of a
    loop, are none."""
    digests = getattr(watch.log, "shown", None)
    if digests is not None and not all(map(is_number, made)):
        with _LOCK:
            digests.add(made)


def fed(values: Mapping[Any, Any], *keys: Any) -> Mapping[Any, Any]:
    """Return a feed_dict; take the checksum of what these placeholders get from it."""
    batch(tuple(as_fed(key, values[key]) for key in keys))
    return values
