"""Sees every turn of a loop that nobody hooks: the interpreter says which line of the loop's own frame begins."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Mapping
from time import perf_counter
from types import CodeType, FrameType
from typing import Any, NamedTuple

from fastfeed.timeline import Loop, Mark, Step, Timeline

SAMPLED = "sampled"
COSTLY = 30_000  # calls of functions a second, each of which the interpreter tells us: above it that is a cost
STOP_S = 1.0
LOOK = 2000  # calls, after which their rate is looked at
_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Lines(NamedTuple):
    """A loop of `code`: its lines, the head first, and by line the share (0 to 1) of its time that is input."""

    code: CodeType
    lines: range
    waits: Mapping[int, float]


class Turns:
    """The steps of a loop that the main thread runs, written into `loop` from `start` to `stop`.

    A debugger or a coverage tool that sees lines itself is left alone, and so is a script that calls so many functions
    that it would feel it; then `given_up` says why.
    """

    def __init__(self, timeline: Timeline, loop: Loop, *, of: Lines) -> None:
        self.given_up = ""
        self._timeline = timeline
        self._loop = loop
        self._code, self._lines, self._waits = of
        self._over, self._ended = False, threading.Event()
        self._calls = 0
        self._looked_s = 0.0
        self._begin_s = -1.0  # of the turn that goes on
        self._wait_s = 0.0
        self._last: tuple[float, float] = (0.0, 0.0)  # when the line that goes on began, and what of it is waiting
        self._left_s = -1.0
        self._started_s = 0.0
        self._pending: list[Any] = []  # they must live until they were called

    def start(self) -> None:
        """From the next instruction of the main thread on."""
        self._started_s = perf_counter()
        self._in_main(self._begin)

    def goes_on(self, within_s: float) -> bool:
        """Whether a turn ended within so many seconds, or none is to be expected yet."""
        last_s = self._loop.steps[-1].end_s if self._loop.steps else self._started_s
        return perf_counter() - max(last_s, self._started_s) < max(within_s, 3 * self._usual_s())

    def same(self, other: Turns) -> bool:
        """Whether both see the same loop."""
        return (self._code, self._lines) == (other._code, other._lines)

    def _usual_s(self) -> float:
        steps = self._loop.steps[-10:]
        return max((step.end_s - step.begin_s for step in steps), default=0.0)

    def stop(self) -> None:
        """Nothing is written from here on; the interpreter is quick again with the main thread's next instruction, for
        which another thread waits a moment: an exception that it then sends there must not be lost in our call."""
        self._over = True
        self._in_main(self._end)
        if threading.current_thread() is not threading.main_thread():
            self._ended.wait(STOP_S)

    def _in_main(self, call: Callable[[FrameType], None]) -> None:
        def pending(_: Any) -> int:
            call(sys._getframe())
            return 0

        self._pending.append(_CALL(pending))
        ctypes.pythonapi.Py_AddPendingCall(self._pending[-1], None)

    def _begin(self, frame: FrameType) -> None:
        if self._over or threading.current_thread() is not threading.main_thread():
            return
        if sys.gettrace() is not None:
            self.given_up = "a debugger or a coverage tool is at work"
            return
        self._looked_s = perf_counter()
        sys.settrace(self._called)
        at: FrameType | None = frame
        while at is not None:
            if at.f_code is self._code:
                at.f_trace = self._line
                break
            at = at.f_back

    def _end(self, frame: FrameType) -> None:
        if sys.gettrace() == self._called:
            sys.settrace(None)
        self._ended.set()

    def _called(self, frame: FrameType, *_: Any) -> Any:
        """Every call of a function in the main thread; only the loop's own is looked into."""
        if frame.f_code is self._code and not self._over:
            return self._line
        self._calls += 1
        if self._calls % LOOK == 0:
            now = perf_counter()
            if LOOK / max(1e-9, now - self._looked_s) > COSTLY:
                self.given_up = "the loop calls too many functions for each of its turns to be seen"
                self._over = True
                sys.settrace(None)
            self._looked_s = now
        return None

    def _line(self, frame: FrameType, event: str, *_: Any) -> Any:
        now = perf_counter()
        if self._over:
            frame.f_trace = None
            return None
        since, waits = self._last
        self._wait_s += waits * (now - since)
        line = frame.f_lineno
        if event == "return" or line not in self._lines:
            self._leave(now)
        elif line == self._lines.start:
            self._turn(now)
        self._last = now, self._waits.get(line, 0.0) if event != "return" else 0.0
        return self._line

    def _turn(self, now: float) -> None:
        if self._begin_s >= 0:
            self._loop.steps.append(Step(self._begin_s, now, min(self._wait_s, now - self._begin_s)))
        elif self._left_s >= 0:
            self._timeline.marks.append(Mark("epoch", now, now, self._loop.name))
        self._begin_s, self._wait_s = now, 0.0

    def _leave(self, now: float) -> None:
        if self._begin_s >= 0:
            self._loop.steps.append(Step(self._begin_s, now, min(self._wait_s, now - self._begin_s)))
            self._begin_s, self._left_s = -1.0, now
