"""`fastfeed.watch`: any loop, recorded step by step; and the wrapper of every other watched
iterator."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from threading import get_ident
from time import perf_counter
from typing import Any, ClassVar

from fastfeed.steps.recorder import StepLog, StepRecorder, site_of
from fastfeed.steps.timeline import Step, Timeline


class WatchedIterator(Iterator[Any]):
    """An iterator whose `next` begins a step. All other attributes are those of `iterator`."""

    __slots__ = ("_iterator", "_next", "_pass")

    def __init__(self, iterator: Iterator[Any], steps: StepRecorder) -> None:
        self._iterator = iterator
        self._next = iterator.__next__
        self._pass = steps

    def __next__(self) -> Any:
        return self._pass.take(self._next)

    def __len__(self) -> int:
        return len(self._iterator)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)

    def __del__(self) -> None:
        """End the iteration of a loop that was left."""
        if self._pass.log.active:
            self._pass.end(perf_counter())


class watch:  # used as a function: for batch in watch(loader)
    """The batches of `loader`, unchanged; for each step, how long it waited and how long it took is
    recorded.

    `for batch in watch(loader): train(batch)` is all that `fastfeed diagnose` needs of a loop of
    any kind. A loop without an iterator puts `with watch.step():` around the step, and `with
    watch.wait():` around the request for its input. Without a diagnosis it keeps the last steps in
    `timeline`. Raise what iteration over the loader raises.
    """

    log: ClassVar[StepLog | None] = None  # of the diagnosis under way

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._own = StepLog(Timeline(), most=20_000)

    @property
    def timeline(self) -> Timeline:
        """What was recorded: the timeline of the diagnosis, if there is one."""
        return (watch._running() or self._own).timeline

    def __iter__(self) -> Iterator[Any]:
        iterator = iter(self._loader)
        # What other code may continue to read must not be taken ahead.
        steps = StepRecorder(
            watch._running() or self._own,
            "watch",
            name=type(self._loader).__name__,
            ahead=iterator is not self._loader,
            buffer=None,
        )
        steps.of = id(self._loader)
        return WatchedIterator(iterator, steps)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        # copying and pickling ask before there is a loader
        if name.startswith("__") or name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)

    @staticmethod
    def step() -> StepScope:
        """Return a context manager around a step whose input was made before it, in the same
        thread."""
        return StepScope(watch._running(), step=True)

    @staticmethod
    def wait() -> StepScope:
        """Return a context manager around the request for the input of the next `watch.step()`."""
        return StepScope(watch._running(), step=False)

    @staticmethod
    def _running() -> StepLog | None:
        return watch.log if watch.log is not None and watch.log.active else None


class StepScope:
    """A block of a loop: a step, or the wait before one. Without a diagnosis it does nothing."""

    __slots__ = ("_begin_s", "_log", "_step")

    def __init__(self, log: StepLog | None, *, step: bool) -> None:
        self._log = log
        self._step = step
        self._begin_s = 0.0

    def __enter__(self) -> None:
        if self._log is not None:
            self._begin_s = perf_counter()
            if not self._step:
                self._log.asking[get_ident()] = self._begin_s

    def __exit__(self, *raised: object) -> None:
        log, thread = self._log, get_ident()
        if log is None:
            return
        now = perf_counter()
        if not self._step:
            log.asking.pop(thread, None)
            begin_s, waited_s = log.waited.get(thread, (self._begin_s, 0.0))
            log.waited[thread] = (begin_s, waited_s + now - self._begin_s)
        # else it is the wait of a watched iterator, which measures it exactly
        elif log.step_of(thread) is None:
            self._write(log, sys._getframe(1), now_s=now)

    def _write(self, log: StepLog, frame: Any, *, now_s: float) -> None:
        thread, at = get_ident(), (frame.f_code, frame.f_lasti)
        where = log.sites.get(at) or log.sites.setdefault(at, site_of(frame))
        loop = log.timeline.loop(
            ("watch.step", where, thread), name="watch.step", kind="watch", thread=thread
        )
        waited = log.waited.pop(thread, None)
        if not loop.steps:
            loop.where, loop.buffer = where, None if waited else 0
            loop.waits = "exact" if waited else "none"
        begin_s, wait_s = waited or (self._begin_s, 0.0)
        loop.steps.append(Step(begin_s, now_s, wait_s))
