"""`fastfeed.watch`, which records any loop, and the iterator that records all watched loops."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from threading import get_ident
from time import perf_counter
from typing import Any, ClassVar

from fastfeed.steps.recorder import BatchSource, StepLog, StepRecorder, site_of
from fastfeed.steps.timeline import Step, Timeline


class WatchedIterator(Iterator[Any]):
    """Wraps `iterator` so that every `next` begins a step; forwards all other attributes."""

    __slots__ = ("_iterator", "_next", "_recorder")

    def __init__(self, iterator: Iterator[Any], steps: StepRecorder) -> None:
        self._iterator = iterator
        self._next = iterator.__next__
        self._recorder = steps

    def __next__(self) -> Any:
        return self._recorder.take(self._next)

    def __len__(self) -> int:
        return len(self._iterator)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)

    def __del__(self) -> None:
        """End the iteration: an abandoned loop drops its iterator."""
        if self._recorder.log.active:
            self._recorder.end(perf_counter())


class watch:  # used like a function: for batch in watch(loader)
    """Yields the batches of `loader` unchanged, and records wait and duration of every step.

    `for batch in watch(loader): train(batch)` is all that `fastfeed diagnose` needs, for any kind
    of loop. A loop without an iterator puts `with watch.step():` around the step, and `with
    watch.wait():` around the code that gets its input. Outside of a diagnosis the last steps are
    kept in `timeline`, and nothing is printed. Exceptions of the loader pass through.
    """

    log: ClassVar[StepLog | None] = None  # the log of the running diagnosis

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._own = StepLog(Timeline(), max_steps=20_000)

    @property
    def timeline(self) -> Timeline:
        """The recorded timeline: that of the diagnosis, if one is running."""
        return (watch._running() or self._own).timeline

    def __iter__(self) -> Iterator[Any]:
        iterator = iter(self._loader)
        # If the loader is its own iterator, other code may continue it: take nothing ahead.
        steps = StepRecorder(
            watch._running() or self._own,
            "watch",
            name=type(self._loader).__name__,
            ahead=iterator is not self._loader,
            buffer=None,
            source=BatchSource(id(self._loader)),
        )
        return WatchedIterator(iterator, steps)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        # copying and pickling look up attributes before there is a loader
        if name.startswith("__") or name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)

    @staticmethod
    def step() -> StepScope:
        """Return a context manager for a step whose input was made before it, in its thread."""
        return StepScope(watch._running(), step=True)

    @staticmethod
    def wait() -> StepScope:
        """Return a context manager for the code that gets the input of the next `watch.step()`."""
        return StepScope(watch._running(), step=False)

    @staticmethod
    def _running() -> StepLog | None:
        return watch.log if watch.log is not None and watch.log.active else None


class StepScope:
    """A block of a loop: a step, or the wait before one. It does nothing without a diagnosis."""

    __slots__ = ("_begin_s", "_log", "_step")

    def __init__(self, log: StepLog | None, *, step: bool) -> None:
        self._log = log
        self._step = step
        self._begin_s = 0.0

    def __enter__(self) -> None:
        if self._log is not None:
            self._begin_s = perf_counter()
            if not self._step:
                self._log.waiting[get_ident()] = self._begin_s

    def __exit__(self, *raised: object) -> None:
        log, thread = self._log, get_ident()
        if log is None:
            return
        now = perf_counter()
        if not self._step:
            log.waiting.pop(thread, None)
            begin_s, waited_s = log.pending_waits.get(thread, (self._begin_s, 0.0))
            log.pending_waits[thread] = (begin_s, waited_s + now - self._begin_s)
        # otherwise the recorder of the iterator measures the step more precisely
        elif log.step_of(thread) is None:
            self._write(log, sys._getframe(1), now_s=now)

    def _write(self, log: StepLog, frame: Any, *, now_s: float) -> None:
        thread, at = get_ident(), (frame.f_code, frame.f_lasti)
        where = log.sites.get(at) or log.sites.setdefault(at, site_of(frame))
        loop = log.timeline.loop(
            ("watch.step", where, thread), name="watch.step", kind="watch", thread=thread
        )
        waited = log.pending_waits.pop(thread, None)
        if not loop.steps:
            loop.where, loop.buffer = where, None if waited else 0
            loop.waits = "exact" if waited else "none"
        begin_s, wait_s = waited or (self._begin_s, 0.0)
        loop.steps.append(Step(begin_s, now_s, wait_s))
