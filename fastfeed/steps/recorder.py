"""Iterations of a loop over its batches, recorded step by step into a timeline."""

from __future__ import annotations

import os
import sys
import sysconfig
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from pathlib import Path
from threading import get_ident
from time import perf_counter
from typing import Any, NamedTuple

from fastfeed.steps.timeline import (
    Leaf,
    Loop,
    Mark,
    Step,
    Timeline,
)

NEVER = float("inf")
LEAVES = 64  # of a batch, at most


class PrefetchedBatch(NamedTuple):
    """A batch that was taken ahead of its step, or how its iterator ended. `before`: what
    `StepRecorder.note` returned then."""

    item: Any
    error: BaseException | None
    wait_s: float
    free: bool
    before: Any = None


class StepLog:
    """Where recorders write, from any thread. Once `active` is False nothing is written and nothing
    is delayed.

    `asking`: since when (time.perf_counter) a thread, by its threading.get_ident(), has been in a
    call that may wait for input; a request inside such a call is part of it, and writes nothing.
    `most`: steps of a loop that are kept.
    """

    def __init__(self, timeline: Timeline, *, most: int | None = None) -> None:
        self.timeline = timeline
        self.active = True
        self.asking: dict[int, float] = {}
        # by thread: begin and sum of the waits of the next step
        self.waited: dict[int, tuple[float, float]] = {}
        self.most = most
        self.sites: dict[Hashable, str] = {}  # lines of blocks, by their position in the code
        self.due_s = NEVER  # when the next experiment begins
        # by thread: recorders of iterations under way, the innermost last
        self.passes: dict[int, list[weakref.ref[StepRecorder]]] = {}
        self.ended: dict[Hashable, float] = {}  # by loop: when its last iteration ended
        # loops, by id, whose last iteration ran inside a step of another one
        self.inner: set[int] = set()
        self.seconds: dict[Hashable, float] = {}  # by loop: of all iterations that have ended
        # those iterations, and their threads
        self.over: deque[tuple[Hashable, int, Mark]] = deque(maxlen=100)

    def experiment(self, steps: StepRecorder, take: Callable[[], Any]) -> None:
        """Take batches ahead of their steps into `steps.ahead`, where an experiment is due."""

    def step_of(self, thread: int) -> StepRecorder | None:
        """Return the innermost recorder that is in a step on this thread."""
        for ref in reversed(self.passes.get(thread, ())):
            found = ref()
            if found is not None and found.in_step:
                return found
        return None


class StepRecorder:
    """Recorder of one iteration of a loop over its batches: `take` is called for each of them.

    The loop is identified by its kind and the first of the user's lines that asks, so that every
    epoch belongs to the same loop. An iteration that runs inside one step of another loop, or
    between two of its iterations, becomes a mark "evaluation".
    """

    def __init__(
        self, log: StepLog, kind: str, *, name: str, buffer: int | None, ahead: bool = True
    ) -> None:
        self.log = log
        self.loop = Loop(name, kind, 0, buffer=buffer)  # until the first batch is requested
        self.may_ahead = ahead
        self.ahead: deque[PrefetchedBatch] = deque()
        self.settle: Callable[[], None] | None = None  # called before the step ends
        # returns True if the producers have nothing to do; None where that is unknown
        self.idle: Callable[[], bool] | None = None
        self.of = 0  # id of the object that is iterated
        self.taking = False  # a batch ahead, at this moment
        self.note: Callable[[], Any] | None = None  # called before each batch that is taken ahead
        self.copies = True  # batches may share memory with those before them
        self.count = 0
        self._key: Hashable = None
        self.begin_s = -1.0  # of the current step
        self._wait_s = 0.0
        self._free = False
        self._first_s = -1.0
        self._follows: float | None = None  # when the previous iteration of the same loop ended
        self._outer: StepRecorder | None = None
        self._outer_count = 0

    @property
    def in_step(self) -> bool:
        """True between a batch and the request for the next one."""
        return self.begin_s >= 0

    def take(self, get: Callable[[], Any]) -> Any:
        """Begin a step: return or raise what `get` does, or what was taken ahead of it."""
        log, thread = self.log, get_ident()
        if not log.active or thread in log.asking:
            return get() if not self.ahead else self._from_ahead(self.ahead.popleft())
        if self.settle is not None and not self.ahead:
            self.settle()
            self.settle = None
        now = perf_counter()
        if self.begin_s >= 0:
            self._close(now)
        elif self._first_s < 0:
            self._begin(now, thread=thread, frame=sys._getframe(1))
        if now >= log.due_s and not self.ahead and self.may_ahead:
            log.experiment(self, get)
            now = perf_counter()
        if self.ahead:
            return self._handed(self.ahead.popleft(), now)
        try:
            log.asking[thread] = now
            item = get()
        except BaseException as error:
            log.asking.pop(thread, None)
            if isinstance(error, StopIteration):
                self.end(now)
            raise
        log.asking.pop(thread, None)
        self._wait_s = perf_counter() - now
        self.begin_s = now
        if self.count < 2:
            self._early(item)
        if self._outer is not None and self._outer.count != self._outer_count:
            # two loaders, step by step: the step waits for both
            self._outer._wait_s += self._wait_s
        return item

    def rest(self) -> None:
        """End the step before the next batch is requested."""
        if self.in_step:
            self._close(perf_counter())

    def end(self, now_s: float) -> None:
        """End the iteration: it is complete, or was left."""
        if self.begin_s >= 0:
            self._close(now_s)
        if self._first_s < 0:
            return
        mark, log, key = (
            Mark("evaluation", self._first_s, now_s, self.loop.name),
            self.log,
            self._key,
        )
        self._first_s = -1.0
        log.ended[key] = now_s
        log.seconds[key] = log.seconds.get(key, 0.0) + now_s - mark.start_s
        outer, self._outer = self._outer, None
        if outer is None:
            log.over.append((key, self.loop.thread, mark))
        elif outer.in_step and outer.count == self._outer_count:
            log.timeline.marks.append(mark)
        _forget(log.passes.get(self.loop.thread, []), self)

    def __del__(self) -> None:
        """End an iteration whose loop was left, and with it its iterator."""
        if self._first_s >= 0 and self.log.active:
            self.end(perf_counter())

    def _close(self, now: float) -> None:
        steps = self.loop.steps
        steps.append(Step(self.begin_s, now, self._wait_s, self._free))
        self.begin_s, self._free = -1.0, False
        self.count += 1
        if self.log.most is not None and len(steps) > self.log.most:
            del steps[: len(steps) // 2]

    def _handed(self, taken: PrefetchedBatch, now: float) -> Any:
        if taken.error is not None:
            if isinstance(taken.error, StopIteration):
                self.end(now)
        else:
            self.begin_s, self._wait_s, self._free = now - taken.wait_s, taken.wait_s, taken.free
            if self.count < 2:
                self._early(taken.item)
        return self._from_ahead(taken)

    @staticmethod
    def _from_ahead(taken: PrefetchedBatch) -> Any:
        if taken.error is not None:
            raise taken.error
        return taken.item

    def _begin(self, now: float, *, thread: int, frame: Any) -> None:
        """Begin the iteration: the first batch is requested."""
        log, where = self.log, site_of(frame)
        loop, self._key, self._first_s = self.loop, (self.loop.kind, where), now
        self.count = 0
        of_thread = log.passes.setdefault(thread, [])
        for ref in list(of_thread):
            other = ref()
            if other is not None and other._key == self._key and other.of != self.of:
                self._key = (self._key, len(of_thread))  # two loaders, zipped in one line
            elif (
                other is None or other._key == self._key
            ):  # an iterator that was left, and is still referenced
                _forget(of_thread, other)
        self._outer = log.step_of(thread)
        self._outer_count = 0 if self._outer is None else self._outer.count
        of_thread.append(weakref.ref(self))
        self.loop = log.timeline.loop(self._key, name=loop.name, kind=loop.kind, thread=thread)
        self.loop.thread, self.loop.where, self.loop.buffer = thread, where, loop.buffer
        self.loop.tells = loop.tells
        (log.inner.discard if self._outer is None else log.inner.add)(id(self.loop))
        self._follows = log.ended.get(self._key)

    def _longer_than(self, key: Hashable) -> bool:
        return key != self._key and self.log.seconds.get(key, 0.0) < self.log.seconds.get(
            self._key, 0.0
        )

    def _early(self, item: Any) -> None:
        """Record the first batches: without any, there was no iteration."""
        if not self.loop.leaves:
            self.loop.leaves = leaves(item)
        ended_s, self._follows = self._follows, None
        if ended_s is not None:
            over = [
                (key, mark) for key, thread, mark in self.log.over if thread == self.loop.thread
            ]
            between = [
                mark for key, mark in over if mark.start_s >= ended_s and self._longer_than(key)
            ]
            epoch = Mark("epoch", self._first_s, self._first_s, self.loop.name)
            self.log.timeline.marks += [*between, epoch]


def _forget(refs: list[weakref.ref[StepRecorder]], one: StepRecorder | None) -> None:
    refs[:] = [ref for ref in refs if ref() not in (None, one)]


def leaves(batch: Any, path: str = "batch") -> tuple[Leaf, ...]:
    """Return the arrays of a batch of any framework: everything with a dtype and a shape. Never
    raises, converts nothing."""
    if isinstance(batch, Mapping):
        parts = [(f"{path}[{key!r}]", value) for key, value in list(batch.items())[:LEAVES]]
    elif isinstance(batch, (tuple, list)):
        parts = [(f"{path}[{i}]", value) for i, value in enumerate(batch[:LEAVES])]
    else:
        return _leaf(batch, path)
    return tuple(leaf for at, part in parts for leaf in leaves(part, at))[:LEAVES]


def _leaf(value: Any, path: str) -> tuple[Leaf, ...]:
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    try:
        dtype = str(getattr(value.dtype, "name", value.dtype)).removeprefix("torch.")
        return (Leaf(path, dtype, tuple(int(n) for n in value.shape), name),)
    except Exception:  # a shape that is unknown, or no array at all
        return () if value is None else (Leaf(path, kind.__name__, (), name),)


def site_of(frame: Any) -> str:
    """Return the user's line that is nearest to a frame, as "train.py:41"; else the frame's own."""
    at, nearest = frame, None
    while at is not None:
        file = at.f_code.co_filename
        if not _ours(file):
            nearest = nearest or at
            if is_users(file):
                nearest = at
                break
        at = at.f_back
    return (
        ""
        if nearest is None
        else f"{os.path.basename(nearest.f_code.co_filename)}:{nearest.f_lineno}"
    )


@cache
def is_users(file: str) -> bool:
    """Return True for a file of the user's own: not of Python, a package or fastfeed."""
    if _ours(file) or file.startswith("<frozen"):
        return False
    paths = sysconfig.get_paths()
    library = (paths["stdlib"], paths["platstdlib"])
    return not any(
        part in file for part in ("site-packages", "dist-packages")
    ) and not file.startswith(library)


@cache
def _ours(file: str) -> bool:
    return Path(__file__).parents[1] in Path(file).parents
