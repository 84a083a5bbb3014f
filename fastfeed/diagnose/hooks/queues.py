"""Hook of loops that take their batches from queues, futures or pools of the standard library."""

from __future__ import annotations

import functools
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from fastfeed.core.user_code import is_users_code
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.patches import Undo, patch, undo_all
from fastfeed.steps.recorder import PrefetchedBatch, StepRecorder, site_of
from fastfeed.steps.timeline import Mark

MODULES = ("queue", "multiprocessing.queues", "multiprocessing.pool", "concurrent.futures._base")
# the methods that wait for a batch, by module
METHODS = {
    "queue": (("Queue", "get"),),
    "multiprocessing.queues": (("Queue", "get"), ("SimpleQueue", "get")),
    "multiprocessing.pool": (("IMapIterator", "next"), ("ApplyResult", "get")),
    "concurrent.futures._base": (("Future", "result"),),
}
MAX_AHEAD = 8  # batches that are taken ahead in a burst
MAX_REFILLS = 3  # of a small queue in a burst
MAX_REFILL_S = 1.5  # longest wait for batches in a burst
SETTLED_S = 0.3  # a queue without a new batch for so long gets no more
QUEUE_POLL_S = 0.01


def install(module: Any, log: HookLog) -> Undo:
    """Patch the calls that wait for a batch.

    Only calls of the main thread from the user's own code are recorded.
    """
    loops = _QueueLoops(log)
    undos = []
    for name, method in METHODS[module.__name__]:
        kind = getattr(module, name)
        if hasattr(kind, "qsize"):
            loops.add_queue(kind, getattr(kind, method))
        wrap = functools.partial(loops.wrap, name=f"{name}.{method}")
        undos.append(patch(kind, method, wrap=wrap))
        # the same function under two names
        if method == "next" and kind.__dict__.get("__next__") is not None:
            undos.append(patch(kind, "__next__", wrap=wrap))
    return undo_all(undos)


class _QueueLoops:
    """The loops that wait in such calls, identified by the user's line."""

    def __init__(self, log: HookLog) -> None:
        self._log = log
        self._recorders: dict[str, StepRecorder] = {}
        self._owners: dict[str, weakref.ref[Any]] = {}  # the queue of the last request
        # the recorder that has taken batches of a queue ahead
        self._ahead: weakref.WeakKeyDictionary[Any, StepRecorder] = weakref.WeakKeyDictionary()
        self._get: dict[type, Callable[..., Any]] = {}  # the original `get` of a queue's type
        self._main = threading.main_thread().ident

    def add_queue(self, kind: type, get: Callable[..., Any]) -> None:
        """Add a type of queues, whose batches can be counted and taken ahead."""
        self._get[kind] = get

    def wrap(self, original: Callable[..., Any], *, name: str) -> Callable[..., Any]:
        """Return a method that records the call of `original` as the wait of a step."""

        @functools.wraps(original)
        def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            get = functools.partial(original, owner, *args, **kwargs)
            taker = self._ahead.get(owner) if self._ahead else None
            steps = None
            if (
                self._log.active
                and threading.get_ident() == self._main
                and _waits(frame, args, kwargs=kwargs)
            ):
                steps = self._recorder(owner, site_of(frame), name=name)
            if taker is not None and taker.ahead and taker is not steps:
                # a request from another line gets the batches that were taken out first
                return taker.ahead.popleft().item
            return get() if steps is None else steps.take(get)

        return call

    def _recorder(self, owner: Any, site: str, *, name: str) -> StepRecorder:
        """Return the recorder of the loop at this line, after the burst that is due."""
        steps = self._recorders.get(site)
        if steps is None:
            steps = self._recorders[site] = StepRecorder(
                self._log, "queue", name=name, buffer=buffer_of(owner), ahead=False
            )
        if type(owner) in self._get:
            last = self._owners.get(site)
            if last is not None and last() is not owner:
                now_s = time.perf_counter()  # another queue for every epoch
                self._log.add_mark(Mark("epoch", now_s, now_s, name))
            self._owners[site] = weakref.ref(owner)
        if steps.in_step and not steps.ahead and self._log.burst_is_due(steps.loop):
            most = min(MAX_AHEAD, MAX_REFILLS * (buffer_of(owner) or MAX_AHEAD))
            self._take_ahead(owner, steps, most=most)
        return steps

    def _take_ahead(self, owner: Any, steps: StepRecorder, *, most: int) -> None:
        """Take ready batches out of the queue when it is full, and let it fill again.

        The producers then wait at a full queue while the next steps have their batches. Never wait
        for a batch that may not come.
        """
        get = self._get.get(type(owner))
        if get is None:
            return
        start_s = time.perf_counter()
        steps.end_step()
        self._ahead[owner] = steps
        room = buffer_of(owner) or most
        while len(steps.ahead) < most and time.perf_counter() - start_s < MAX_REFILL_S:
            _await_batches(owner, min(room, most - len(steps.ahead)))
            if not _ready(owner):
                break
            try:
                while len(steps.ahead) < most and _ready(owner):
                    steps.ahead.append(PrefetchedBatch(get(owner, block=False), None, 0.0, True))
            except queue.Empty:  # the batch is still on its way through a pipe
                break
        # completely: producers with room left would go on beside the free steps
        _await_batches(owner, room)
        end_s = time.perf_counter()
        self._log.add_mark(Mark("experiment", start_s, end_s))
        self._log.end_burst(end_s - start_s)


def _waits(frame: Any, args: tuple[Any, ...], *, kwargs: dict[str, Any]) -> bool:
    """Return True if the user's own code waits: a check without waiting is no step."""
    blocks = args[0] if args else kwargs.get("block", True)
    return blocks is not False and is_users_code(frame.f_code)


def buffer_of(owner: Any) -> int | None:
    """Return the maximum number of batches in a queue, or None if it has no limit."""
    size = getattr(owner, "maxsize", 0) or getattr(owner, "_maxsize", 0)
    return size if isinstance(size, int) and 0 < size < 1 << 16 else None


def _await_batches(owner: Any, count: int) -> None:
    """Wait until `count` batches are ready, no more come, or it takes too long."""
    start_s = last_s = time.perf_counter()
    before = -1
    while (now_s := time.perf_counter()) - start_s < MAX_REFILL_S and now_s - last_s < SETTLED_S:
        ready = _ready(owner)
        if ready >= count:
            break
        if ready != before:
            before, last_s = ready, now_s
        time.sleep(QUEUE_POLL_S)


def _ready(owner: Any) -> int:
    """Return how many batches are ready, 0 if the object does not know."""
    try:
        return int(owner.qsize())
    except (AttributeError, NotImplementedError, OSError):
        return 0
