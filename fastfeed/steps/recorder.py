"""Recording of a loop's iterations over its batches, step by step, into a timeline."""

from __future__ import annotations

import linecache
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from threading import get_ident
from time import perf_counter
from typing import Any, NamedTuple

from fastfeed.core.status import ProducerStatus
from fastfeed.core.user_code import is_own, is_users_code
from fastfeed.steps.timeline import (
    Leaf,
    Loop,
    Mark,
    Step,
    Timeline,
)

NEVER = float("inf")
ENDING_S = 0.001  # of a request that finds no batch: shorter ones have no mark
MAX_LEAVES = 64  # maximum number of leaves of a batch


class BatchSource(NamedTuple):
    """Facts about an object that is iterated over, and questions to it."""

    ident: int = 0  # its id()
    reuses_memory: bool = True  # True if a batch may share memory with earlier ones
    # returns True if the producers have nothing to do; None if that cannot be determined
    idle: Callable[[], bool] | None = None
    # called before each batch that is prefetched
    get_state: Callable[[], Any] = lambda: None
    note: str = ""  # see Loop
    producers: Callable[[], list[ProducerStatus]] | None = None  # see Loop


UNKNOWN_SOURCE = BatchSource()


class PrefetchedBatch(NamedTuple):
    """A batch that was taken before its step, or the error that came in its place.

    `state` is what `BatchSource.get_state` returned before the batch was prefetched.
    """

    item: Any
    error: BaseException | None
    wait_s: float
    free: bool
    state: Any = None


class StepLog:
    """Shared state of all recorders of a timeline, written from any thread.

    Once `active` is False, nothing is recorded and nothing is delayed. `waiting` maps a thread, by
    its threading.get_ident(), to the time (time.perf_counter) since when it has been in a call that
    may wait for input. A request inside such a call is a part of it and is not recorded.
    `max_steps` is the number of steps of a loop that are kept.
    """

    def __init__(self, timeline: Timeline, *, max_steps: int | None = None) -> None:
        self.timeline = timeline
        self.active = True
        self.waiting: dict[int, float] = {}
        # by thread: begin and sum of the waits before the next step
        self.pending_waits: dict[int, tuple[float, float]] = {}
        self.max_steps = max_steps
        self.sites: dict[Hashable, str] = {}  # lines of blocks, by their place in the code
        self.due_s = NEVER  # when the next experiment begins
        # active recorders by thread, the innermost last
        self.recorders: dict[int, list[weakref.ref[StepRecorder]]] = {}
        self.ended_s: dict[Hashable, float] = {}  # by loop: when its last iteration ended
        # ids of loops whose last iteration ran inside a step of another loop
        self.nested: set[int] = set()
        self.total_s: dict[Hashable, float] = {}  # by loop: total time of all finished iterations
        # finished iterations outside any step: (loop, thread, mark)
        self.finished: deque[tuple[Hashable, int, Mark]] = deque(maxlen=100)

    def experiment(self, steps: StepRecorder, take: Callable[[], Any]) -> None:
        """Run an experiment that is due; it may take batches ahead into `steps.ahead`."""

    def fetch(self, loop: Loop, get: Callable[[], Any], *, begin_s: float) -> Any:
        """Return or raise what `get` does, the input of the step at `begin_s`."""
        return get()

    def step_of(self, thread: int) -> StepRecorder | None:
        """Return the innermost recorder that is in a step on this thread."""
        for ref in reversed(self.recorders.get(thread, ())):
            found = ref()
            if found is not None and found.in_step:
                return found
        return None


class StepRecorder:
    """Records one iteration of a loop over its batches: the iterator asks `take` for each batch.

    A loop is identified by its kind, the user's line that asks first, and the functions of
    libraries between them, so that every epoch is recorded into the same loop. An iteration that
    runs inside one step of another loop, or between two of its iterations, becomes a mark
    "evaluation".
    """

    def __init__(
        self,
        log: StepLog,
        kind: str,
        *,
        name: str,
        buffer: int | None,
        ahead: bool = True,
        source: BatchSource = UNKNOWN_SOURCE,
    ) -> None:
        self.log = log
        # replaced when the first batch is requested
        self.loop = Loop(name, kind, 0, buffer=buffer, note=source.note, producers=source.producers)
        self.allow_ahead = ahead
        self.ahead: deque[PrefetchedBatch] = deque()
        self.on_step_end: Callable[[], None] | None = None  # called before the step ends
        self.source = source
        self.prefetching = False  # True while a batch is prefetched
        self.count = 0
        self._key: Hashable = None
        self.begin_s = -1.0  # of the current step
        self._wait_s = 0.0
        self._free = False
        self._first_s = -1.0
        self._previous_end_s: float | None = None  # end of the previous iteration of the same loop
        self._outer: StepRecorder | None = None
        self._outer_count = 0

    @property
    def in_step(self) -> bool:
        """True if a batch was handed out and the next one was not requested yet."""
        return self.begin_s >= 0

    def take(self, get: Callable[[], Any]) -> Any:
        """Return or raise what `get` does, or what was prefetched for it; a step begins."""
        log, thread = self.log, get_ident()
        if not log.active or thread in log.waiting:
            return get() if not self.ahead else self._unwrap(self.ahead.popleft())
        if self.on_step_end is not None and not self.ahead:
            self.on_step_end()
            self.on_step_end = None
        now = perf_counter()
        if self.begin_s >= 0:
            self._close(now)
        elif self._first_s < 0:
            self._begin(now, thread=thread, frame=sys._getframe(1))
        if now >= log.due_s and not self.ahead and self.allow_ahead:
            log.experiment(self, get)
            now = perf_counter()
        if self.ahead:
            return self._hand_out(self.ahead.popleft(), now)
        try:
            log.waiting[thread] = now
            item = log.fetch(self.loop, get, begin_s=now)
        except BaseException as error:
            log.waiting.pop(thread, None)
            if isinstance(error, StopIteration):
                if perf_counter() - now > ENDING_S:
                    log.timeline.marks.append(Mark("end", now, perf_counter(), self.loop.name))
                self.end(now)
            raise
        log.waiting.pop(thread, None)
        self._wait_s = perf_counter() - now
        self.begin_s = now
        if self.count < 2:
            self._begin_epoch(item)
        if self._outer is not None and self._outer.count != self._outer_count:
            # two loaders, advanced in every step: the step waits for both
            self._outer._wait_s += self._wait_s
        return item

    def prefetch(self, get: Callable[[], Any], *, free: bool = True) -> PrefetchedBatch:
        """Take the next batch, or the error raised in its place, into `ahead`, and return it.

        A batch that is not `free` has its wait, as in an ordinary step. An interrupt is raised at
        once.
        """
        begin_s = perf_counter()
        prefetched = self._prefetch(get)
        if not free:
            prefetched = prefetched._replace(wait_s=perf_counter() - begin_s, free=False)
        self.ahead.append(prefetched)
        return prefetched

    def even_out(self, finish: Callable[[], None]) -> None:
        """Spread the time of the steps in `ahead` evenly over them once `finish` returns, which is
        called at the end of the last one."""
        count = len(self.ahead)

        def spread() -> None:
            finish()
            steps = self.loop.steps
            free = steps[len(steps) - count + 1 :]
            if not self.in_step or len(free) != count - 1 or not all(step.free for step in free):
                return
            begin_s = free[0].begin_s if free else self.begin_s
            each_s = (perf_counter() - begin_s) / count
            begins = [begin_s + i * each_s for i in range(count)]
            steps[len(steps) - count + 1 :] = [Step(t, t + each_s, 0.0, True) for t in begins[:-1]]
            self.begin_s = begins[-1]

        self.on_step_end = spread

    def end_step(self) -> None:
        """End the current step before the next batch is requested."""
        if self.in_step:
            self._close(perf_counter())

    def end(self, now_s: float) -> None:
        """End the iteration, which finished or was abandoned."""
        if self.begin_s >= 0:
            self._close(now_s)
        if self._first_s < 0:
            return
        log, key = self.log, self._key
        mark = Mark("evaluation", self._first_s, now_s, self.loop.name)
        self._first_s = -1.0
        log.ended_s[key] = now_s
        log.total_s[key] = log.total_s.get(key, 0.0) + now_s - mark.start_s
        outer, self._outer = self._outer, None
        if outer is None:
            log.finished.append((key, self.loop.thread, mark))
        elif outer.in_step and outer.count == self._outer_count:
            log.timeline.marks.append(mark)
        _forget(log.recorders.get(self.loop.thread, []), self)

    def __del__(self) -> None:
        """End the iteration: an abandoned loop drops its iterator."""
        if self._first_s >= 0 and self.log.active:
            self.end(perf_counter())

    def _close(self, now: float) -> None:
        step = Step(self.begin_s, now, self._wait_s, self._free)
        self.loop.add(step, max_steps=self.log.max_steps)
        self.begin_s, self._free = -1.0, False
        self.count += 1

    def _prefetch(self, get: Callable[[], Any]) -> PrefetchedBatch:
        thread = get_ident()
        self.prefetching = True
        state = self.source.get_state()
        self.log.waiting[thread] = perf_counter()
        try:
            return PrefetchedBatch(get(), None, 0.0, True, state)
        except Exception as error:
            return PrefetchedBatch(None, error, 0.0, True, state)
        finally:
            self.prefetching = False
            self.log.waiting.pop(thread, None)

    def _hand_out(self, prefetched: PrefetchedBatch, now: float) -> Any:
        if prefetched.error is not None:
            if isinstance(prefetched.error, StopIteration):
                self.end(now)
        else:
            self.begin_s = now - prefetched.wait_s
            self._wait_s, self._free = prefetched.wait_s, prefetched.free
            if self.count < 2:
                self._begin_epoch(prefetched.item)
        return self._unwrap(prefetched)

    @staticmethod
    def _unwrap(prefetched: PrefetchedBatch) -> Any:
        if prefetched.error is not None:
            raise prefetched.error
        return prefetched.item

    def _begin(self, now: float, *, thread: int, frame: Any) -> None:
        """Begin the iteration when its first batch is requested."""
        log, loop, where = self.log, self.loop, site_of(frame)
        self._key = (loop.kind, where, *_library_callers(frame))
        self._first_s, self.count = now, 0
        recorders = log.recorders.setdefault(thread, [])
        for ref in list(recorders):
            other = ref()
            if (
                other is not None
                and other._key == self._key
                and other.source.ident != self.source.ident
            ):
                self._key = (self._key, len(recorders))  # two loaders, zipped in one line
            elif other is None or other._key == self._key:
                _forget(recorders, other)  # an abandoned iterator that still exists
        self._outer = log.step_of(thread)
        self._outer_count = 0 if self._outer is None else self._outer.count
        recorders.append(weakref.ref(self))
        self.loop = log.timeline.loop(self._key, name=loop.name, kind=loop.kind, thread=thread)
        self.loop.thread, self.loop.where, self.loop.buffer = thread, where, loop.buffer
        self.loop.note, self.loop.producers = loop.note, loop.producers
        self.loop.text = self.loop.text or text_at(frame)
        (log.nested.discard if self._outer is None else log.nested.add)(id(self.loop))
        self._previous_end_s = log.ended_s.get(self._key)

    def _took_longer_than(self, key: Hashable) -> bool:
        return key != self._key and self.log.total_s.get(key, 0.0) < self.log.total_s.get(
            self._key, 0.0
        )

    def _begin_epoch(self, item: Any) -> None:
        """Handle the first batches: an iteration counts only once it has one."""
        if not self.loop.leaves:
            self.loop.leaves = leaves(item)
        ended_s, self._previous_end_s = self._previous_end_s, None
        if ended_s is not None:
            finished = [
                (key, mark) for key, thread, mark in self.log.finished if thread == self.loop.thread
            ]
            between = [
                mark
                for key, mark in finished
                if mark.start_s >= ended_s and self._took_longer_than(key)
            ]
            epoch = Mark("epoch", self._first_s, self._first_s, self.loop.name)
            self.log.timeline.marks += [*between, epoch]


def _forget(refs: list[weakref.ref[StepRecorder]], one: StepRecorder | None) -> None:
    refs[:] = [ref for ref in refs if ref() not in (None, one)]


def leaves(batch: Any, path: str = "batch") -> tuple[Leaf, ...]:
    """Return the arrays of a batch of any framework: everything with a dtype and a shape.

    It never raises and converts nothing.
    """
    if isinstance(batch, Mapping):
        parts = [(f"{path}[{key!r}]", value) for key, value in list(batch.items())[:MAX_LEAVES]]
    elif isinstance(batch, (tuple, list)):
        parts = [(f"{path}[{i}]", value) for i, value in enumerate(batch[:MAX_LEAVES])]
    else:
        return _leaf(batch, path)
    return tuple(leaf for at, part in parts for leaf in leaves(part, at))[:MAX_LEAVES]


def _leaf(value: Any, path: str) -> tuple[Leaf, ...]:
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    try:
        dtype = str(getattr(value.dtype, "name", value.dtype)).removeprefix("torch.")
        return (Leaf(path, dtype, tuple(-1 if n is None else int(n) for n in value.shape), name),)
    except Exception:  # an unknown shape, or no array at all
        return () if value is None else (Leaf(path, kind.__name__, (), name),)


def site_of(frame: Any) -> str:
    """Return the user's line closest to a frame, as "train.py:41".

    If no caller is the user's code, return the closest line outside of fastfeed, or "".
    """
    file, line = _nearest(frame)
    return f"{os.path.basename(file)}:{line}" if file else ""


def text_at(frame: Any) -> str:
    """Return the source of that line; "" if it is unknown."""
    return linecache.getline(*_nearest(frame)).strip()


def _library_callers(frame: Any) -> tuple[Any, ...]:
    """Return the code between a frame and the user's line: a library that trains and evaluates in
    one call of the user's does so in different functions."""
    found, at = [], frame
    while at is not None and not is_users_code(at.f_code):
        if not is_own(at.f_code.co_filename):
            found.append(at.f_code)
        at = at.f_back
    return tuple(found)


def _nearest(frame: Any) -> tuple[str, int]:
    at, nearest = frame, ("", 0)
    while at is not None:
        file = at.f_code.co_filename
        if not is_own(file):
            if is_users_code(at.f_code):
                return file, at.f_lineno
            nearest = nearest if nearest[0] else (file, at.f_lineno)
        at = at.f_back
    return nearest
