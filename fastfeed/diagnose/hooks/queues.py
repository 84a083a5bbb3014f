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
        get = self._get.get(type(owner))
        if get is None:
            return steps
        last = self._owners.get(site)
        if last is not None and last() is not owner:
            now_s = time.perf_counter()  # another queue for every epoch
            self._log.add_mark(Mark("epoch", now_s, now_s, name))
        self._owners[site] = weakref.ref(owner)
        if steps.in_step and not steps.ahead and self._log.burst_is_due(steps.loop):
            steps.end_step()
            self._ahead[owner] = steps
            self._log.burst(_QueueInput(owner, steps, get=get))
        return steps


class _QueueInput:
    """A queue, whose ready batches a burst takes out, so that it fills again.

    The producers then wait at a full queue while the next steps have their batches. It never waits
    for a batch that may not come.
    """

    def __init__(self, owner: Any, steps: StepRecorder, *, get: Callable[..., Any]) -> None:
        self._owner = owner
        self._get = get
        self._steps = steps
        self._size = buffer_of(owner) or sys.maxsize
        self._ready, self._changed_s = -1, 0.0

    def take(self) -> bool:
        """Take a batch out of the queue, if one comes."""
        while True:
            try:
                batch = self._get(self._owner, block=False)
                break
            except queue.Empty:  # or it is still on its way through a pipe
                if self._is_settled():
                    return False
                time.sleep(QUEUE_POLL_S)
        self._steps.ahead.append(PrefetchedBatch(batch, None, 0.0, True))
        return True

    def is_full(self) -> bool:
        """Return True if the queue is full, or gets no more."""
        return self._count() >= self._size or self._is_settled()

    def _is_settled(self) -> bool:
        ready, now_s = self._count(), time.perf_counter()
        if ready != self._ready:
            self._ready, self._changed_s = ready, now_s
        return now_s - self._changed_s >= SETTLED_S

    def _count(self) -> int:
        """Return how many batches are ready, 0 if the queue does not know."""
        try:
            return int(self._owner.qsize())
        except (AttributeError, NotImplementedError, OSError):
            return 0


def _waits(frame: Any, args: tuple[Any, ...], *, kwargs: dict[str, Any]) -> bool:
    """Return True if the user's own code waits: a check without waiting is no step."""
    blocks = args[0] if args else kwargs.get("block", True)
    return blocks is not False and is_users_code(frame.f_code)


def buffer_of(owner: Any) -> int | None:
    """Return the maximum number of batches in a queue, or None if it has no limit."""
    size = getattr(owner, "maxsize", 0) or getattr(owner, "_maxsize", 0)
    return size if isinstance(size, int) and 0 < size < 1 << 16 else None
