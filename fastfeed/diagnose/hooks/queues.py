"""Sees loops that take their batches from a queue, a future or a pool of the standard library."""

from __future__ import annotations

import functools
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from fastfeed.diagnose.hooks.context import Context
from fastfeed.diagnose.hooks.patches import Undo, patch, undo_all
from fastfeed.passing import Pass, is_users, site_of
from fastfeed.timeline import Mark

MODULES = ("queue", "multiprocessing.queues", "multiprocessing.pool", "concurrent.futures._base")
CALLS = {
    "queue": (("Queue", "get"),),
    "multiprocessing.queues": (("Queue", "get"), ("SimpleQueue", "get")),
    "multiprocessing.pool": (("IMapIterator", "next"), ("ApplyResult", "get")),
    "concurrent.futures._base": (("Future", "result"),),
}
FREE = 8  # steps behind a rest, at most
REST_S = 1.5
LOOK_S = 0.01


def install(module: Any, context: Context) -> Undo:
    """Patches the calls that wait for a batch; only those of the main thread from the user's own code count."""
    seen = _Queues(context)
    undos = []
    for name, method in CALLS[module.__name__]:
        kind = getattr(module, name)
        undos.append(patch(kind, method, wrap=functools.partial(seen.around, name=f"{name}.{method}")))
        if method == "next" and kind.__dict__.get("__next__") is not None:  # the same function under two names
            undos.append(patch(kind, "__next__", wrap=functools.partial(seen.around, name=f"{name}.{method}")))
    return undo_all(undos)


class _Queues:
    """The loops that wait in such calls, told apart by the user's line."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._passes: dict[str, Pass] = {}
        self._free: dict[str, int] = {}
        self._main = threading.main_thread().ident

    def around(self, plain: Callable[..., Any], *, name: str) -> Callable[..., Any]:
        """`plain`, written down as the wait of a step."""

        @functools.wraps(plain)
        def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            get = functools.partial(plain, owner, *args, **kwargs)
            if not self._context.active or threading.get_ident() != self._main or not _asks(frame, args, kwargs=kwargs):
                return get()
            return self._take(owner, get, site=site_of(frame), name=name)

        return call

    def _take(self, owner: Any, get: Callable[[], Any], *, site: str, name: str) -> Any:
        steps = self._passes.get(site)
        if steps is None:
            size = getattr(owner, "maxsize", 0) or getattr(owner, "_maxsize", 0)
            buffer = size if isinstance(size, int) and 0 < size < 1 << 16 else None
            steps = self._passes[site] = Pass(self._context, "queue", name=name, buffer=buffer, ahead=False)
        if steps.in_step and self._context.experiments is not None and self._context.experiments.may(steps.loop):
            self._rest(weakref.ref(owner), steps, site=site)
        count = len(steps.loop.steps)
        try:
            return steps.take(get)
        finally:
            if len(steps.loop.steps) > count and self._free.get(site, -1) >= 0:
                if self._free[site] < FREE:  # the one before the rest is as all others
                    steps.loop.steps[-1] = steps.loop.steps[-1]._replace(free=True)
                self._free[site] -= 1

    def _rest(self, ref: weakref.ref[Any], steps: Pass, *, site: str) -> None:
        """Lets the producers make batches ahead, so that the next steps find theirs."""
        experiments = self._context.experiments
        start_s = time.perf_counter()
        most = min(FREE, steps.loop.buffer or FREE)
        while time.perf_counter() - start_s < REST_S and _waiting(ref()) < most:
            time.sleep(LOOK_S)
        spent_s = time.perf_counter() - start_s
        self._context.timeline.marks.append(Mark("experiment", start_s, start_s + spent_s))
        found = min(FREE, _waiting(ref()))
        if found > 1:
            self._free[site] = found
        if experiments is not None:
            experiments.spent(spent_s)


def _asks(frame: Any, args: tuple[Any, ...], *, kwargs: dict[str, Any]) -> bool:
    """Whether the user's own code waits: looking without waiting is no step."""
    blocks = args[0] if args else kwargs.get("block", True)
    return blocks is not False and is_users(frame.f_code.co_filename)


def _waiting(owner: Any) -> int:
    """Batches that lie ready, as far as such an object knows."""
    try:
        return int(owner.qsize())
    except (AttributeError, NotImplementedError, OSError):
        return 0
