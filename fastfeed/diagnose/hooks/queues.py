"""Observe loops that take their batches from a queue, a future or a pool of the standard
library."""

from __future__ import annotations

import functools
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.patches import Undo, patch, undo_all
from fastfeed.steps.recorder import (
    PrefetchedBatch,
    StepRecorder,
    is_users,
    site_of,
)
from fastfeed.steps.timeline import Mark

MODULES = ("queue", "multiprocessing.queues", "multiprocessing.pool", "concurrent.futures._base")
CALLS = {
    "queue": (("Queue", "get"),),
    "multiprocessing.queues": (("Queue", "get"), ("SimpleQueue", "get")),
    "multiprocessing.pool": (("IMapIterator", "next"), ("ApplyResult", "get")),
    "concurrent.futures._base": (("Future", "result"),),
}
FREE = 8  # batches that are taken ahead, at most
REFILLS = 3  # of a small buffer
FILLS_S = 1.5
STILL_S = 0.3  # without a new batch: there are no more
LOOK_S = 0.01


def install(module: Any, log: HookLog) -> Undo:
    """Patch the calls that wait for a batch; only those of the main thread from the user's own code
    count."""
    seen = _QueueLoops(log)
    undos = []
    for name, method in CALLS[module.__name__]:
        kind = getattr(module, name)
        if hasattr(kind, "qsize"):
            seen.plain[kind] = getattr(kind, method)
        undos.append(
            patch(kind, method, wrap=functools.partial(seen.around, name=f"{name}.{method}"))
        )
        # the same function under two names
        if method == "next" and kind.__dict__.get("__next__") is not None:
            undos.append(
                patch(
                    kind, "__next__", wrap=functools.partial(seen.around, name=f"{name}.{method}")
                )
            )
    return undo_all(undos)


class _QueueLoops:
    """The loops that wait in such calls, identified by the user's line."""

    def __init__(self, log: HookLog) -> None:
        self._log = log
        self._passes: dict[str, StepRecorder] = {}
        self._owners: dict[str, weakref.ref[Any]] = {}  # the queue of the last request
        self._held: weakref.WeakKeyDictionary[Any, StepRecorder] = weakref.WeakKeyDictionary()
        # how such a queue gives a batch that is ready
        self.plain: dict[type, Callable[..., Any]] = {}
        self._main = threading.main_thread().ident

    def around(self, plain: Callable[..., Any], *, name: str) -> Callable[..., Any]:
        """Return `plain`, recorded as the wait of a step."""

        @functools.wraps(plain)
        def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            get = functools.partial(plain, owner, *args, **kwargs)
            held = self._held.get(owner) if self._held else None
            steps = None
            if (
                self._log.active
                and threading.get_ident() == self._main
                and _asks(frame, args, kwargs=kwargs)
            ):
                steps = self._steps(owner, site_of(frame), name=name)
            if held is not None and held.ahead and held is not steps:
                # a request elsewhere gets what was taken out first
                return held.ahead.popleft().item
            return get() if steps is None else steps.take(get)

        return call

    def _steps(self, owner: Any, site: str, *, name: str) -> StepRecorder:
        """Return the recorder of the loop at this line; its experiment is made here."""
        steps = self._passes.get(site)
        if steps is None:
            steps = self._passes[site] = StepRecorder(
                self._log, "queue", name=name, buffer=buffer_of(owner), ahead=False
            )
        if type(owner) in self.plain:
            last = self._owners.get(site)
            if last is not None and last() is not owner:
                now_s = time.perf_counter()  # another queue for every epoch
                self._log.timeline.marks.append(Mark("epoch", now_s, now_s, name))
            self._owners[site] = weakref.ref(owner)
        experiments = self._log.experiments
        if (
            steps.in_step
            and not steps.ahead
            and experiments is not None
            and experiments.is_due(steps.loop)
        ):
            self._ahead(owner, steps, most=min(FREE, REFILLS * (buffer_of(owner) or FREE)))
        return steps

    def _ahead(self, owner: Any, steps: StepRecorder, *, most: int) -> None:
        """Take ready batches out of the queue when it is full, and let it fill again: the producers
        then wait at a full queue while the next steps have their batches. Never wait for something
        that may not come."""
        experiments, get = self._log.experiments, self.plain.get(type(owner))
        start_s = time.perf_counter()
        if experiments is None or get is None:
            return
        steps.end_step()
        self._held[owner] = steps
        room = buffer_of(owner) or most
        while len(steps.ahead) < most and time.perf_counter() - start_s < FILLS_S:
            _fills(owner, min(room, most - len(steps.ahead)))
            if not _ready(owner):
                break
            try:
                while len(steps.ahead) < most and _ready(owner):
                    steps.ahead.append(PrefetchedBatch(get(owner, block=False), None, 0.0, True))
            except queue.Empty:  # it is still on its way through a pipe
                break
        # completely: producers with room left would go on beside the free steps
        _fills(owner, buffer_of(owner) or most)
        spent_s = time.perf_counter() - start_s
        self._log.timeline.marks.append(Mark("experiment", start_s, start_s + spent_s))
        experiments.end_burst(spent_s)


def _asks(frame: Any, args: tuple[Any, ...], *, kwargs: dict[str, Any]) -> bool:
    """Return True if the user's own code waits: a check without waiting is no step."""
    blocks = args[0] if args else kwargs.get("block", True)
    return blocks is not False and is_users(frame.f_code.co_filename)


def buffer_of(owner: Any) -> int | None:
    """Return how many batches such a queue holds, if it has a limit."""
    size = getattr(owner, "maxsize", 0) or getattr(owner, "_maxsize", 0)
    return size if isinstance(size, int) and 0 < size < 1 << 16 else None


def _fills(owner: Any, most: int) -> None:
    """Wait until there are `most`, or no more come, or it takes too long."""
    start_s = last_s = time.perf_counter()
    before = -1
    while (now := time.perf_counter()) - start_s < FILLS_S and now - last_s < STILL_S:
        count = _ready(owner)
        if count >= most:
            break
        if count != before:
            before, last_s = count, now
        time.sleep(LOOK_S)


def _ready(owner: Any) -> int:
    """Return how many batches are ready, as far as the object knows."""
    try:
        return int(owner.qsize())
    except (AttributeError, NotImplementedError, OSError):
        return 0
