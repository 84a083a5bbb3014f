"""Tracers of the lines of a loop: by sys.monitoring since Python 3.12, by sys.settrace before."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from time import perf_counter
from types import CodeType, FrameType
from typing import Any

from fastfeed.probes.pending_calls import in_main

MAX_COST = 0.02  # share of the time
# where tracing costs more: iterations, and seconds, that are traced; then a second without
TRACED_ITERATIONS, TRACE_WINDOW_S = 3, 0.1
MAX_ITERATION_EVENTS = 400_000  # calls and lines in one iteration that are too many to trace
# times that a line begins in one iteration: it belongs to an inner loop, and is no longer traced
MAX_LINE_REPEATS = 50
TOOLS = (4, 3)  # of sys.monitoring: ids that no kind of tool is meant to have
TRACER_STOP_S = 5.0
CALLS_PER_CHECK = 2000  # calls after which their rate is checked
# Seconds that the thread loses to a line of the loop, and to a call.
LINE_S, CALL_S = 6e-7, 1.6e-6
SUSPENDS = (
    inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
    | inspect.CO_ITERABLE_COROUTINE
)
# Traced bytecode takes this many times as long: 2.6 times with Python 3.11, 1.5 to 3 with 3.10,
# beside other work.
TRACED_FACTOR = 1.0 if sys.version_info >= (3, 12) else 2.5
TOO_MANY_EVENTS = "one turn of the loop calls too many functions, or has too many lines"
TRACER_IN_USE = "a debugger or a coverage tool is at work"
# called with a line that begins, and when; line 0: the function is over
LineCallback = Callable[[int, float], None]


def _nothing(*_: Any) -> None:
    """Ignore a line of a frame that is not traced."""


class TraceLineTracer:
    """Calls `seen` for the lines of `code` in the main thread, from `start` to `stop`.

    All bytecode of a traced thread is slow. So functions that the loop calls are not traced:
    tracing ends with the call, and continues when the called frame is gone. Bytecode of a generator
    cannot be spared: see TRACED_FACTOR. If tracing costs much (`costly`, or as measured) it `rests`
    after some iterations, until `wake` is called.
    """

    def __init__(
        self, code: CodeType, seen: LineCallback, *, head: int, costly: bool = False
    ) -> None:
        self.given_up = ""
        self.rests = False
        self.wakes = 0  # how often tracing continued after a rest
        self._code, self._seen, self._head, self._costly = code, seen, head, costly
        self.cost_s = self._cost_s = 0.0  # of tracing, without what it slows down
        self._main = threading.main_thread().ident
        # A frame's trace function is released with the frame. No Python may run then: an exception
        # that a signal raises in it, as Ctrl-C does, would be lost.
        again = functools.partial(sys.settrace, self.called)
        self._goes_on = type(
            "GoesOn", (), {"__slots__": (), "__call__": _nothing, "__del__": again}
        )
        self._woke_s = 0.0
        self._over, self._ended = False, threading.Event()
        self._calls = self._before = 0  # calls, and those before this iteration
        self._turns = 0  # since it woke
        self._looked_s = 0.0

    def start(self) -> None:
        """Begin with the next instruction of the main thread."""
        in_main(self._begin)

    def stop(self) -> None:
        """End. The interpreter is fast again with the main thread's next instruction, for which
        another thread waits a moment: an exception that it then sends there must not be lost in a
        call from here."""
        self._over = True
        if not self._woke_s:
            return  # the main thread has executed nothing since `start`, and may never do so
        in_main(self._end)
        if threading.current_thread() is not threading.main_thread():
            self._ended.wait(TRACER_STOP_S)

    def wake(self) -> None:
        """Trace again, if it rests."""
        if self.rests and not self._over:
            in_main(self._begin)

    def called(self, frame: FrameType, *_: Any) -> Any:
        """Handle every call of a function; only the loop's own is traced."""
        if self._over or self.rests or threading.get_ident() != self._main:
            sys.settrace(None)
            # else another thread held the last reference to the frame
            if not self._over and not self.rests:
                in_main(self._again)
            return None
        if frame.f_code is self._code:
            return self._line
        self._count(perf_counter())
        self.cost_s += CALL_S
        if frame.f_code.co_flags & SUSPENDS:
            return None
        sys.settrace(None)
        return self._goes_on()

    def _again(self, frame: FrameType) -> None:
        if not self._over and not self.rests and sys.gettrace() is None:
            sys.settrace(self.called)

    def _begin(self, frame: FrameType) -> None:
        if self._over or threading.current_thread() is not threading.main_thread():
            return
        if sys.gettrace() not in (None, self.called):
            self.given_up = TRACER_IN_USE
            return
        self.wakes += self.rests
        self.rests, self._turns = False, 0
        self._woke_s = self._looked_s = perf_counter()
        sys.settrace(self.called)
        at: FrameType | None = frame
        while at is not None:
            if at.f_code is self._code:
                at.f_trace = self._line
                break
            at = at.f_back

    def _end(self, frame: FrameType) -> None:
        if sys.gettrace() == self.called:
            sys.settrace(None)
        self._ended.set()

    def _count(self, now: float) -> None:
        self._calls += 1
        if self._calls % CALLS_PER_CHECK == 0:
            self._costly = self._costly or self.cost_s - self._cost_s > MAX_COST * (
                now - self._looked_s
            )
            self._looked_s, self._cost_s = now, self.cost_s
            if self._calls - self._before > MAX_ITERATION_EVENTS:
                self.given_up = TOO_MANY_EVENTS
                self._over = True
                sys.settrace(None)

    def _line(self, frame: FrameType, event: str, *_: Any) -> Any:
        if self._over:
            frame.f_trace = None
            sys.settrace(None)
            return None
        line, now = 0 if event == "return" else frame.f_lineno, perf_counter()
        self._count(now)
        self.cost_s += LINE_S
        self._seen(line, now)
        if line == self._head:
            self._before = self._calls
            self._turns += 1
            if (
                self._costly
                and self._turns > TRACED_ITERATIONS
                and now - self._woke_s > TRACE_WINDOW_S
            ):
                self.rests = True
                sys.settrace(None)
        return self._line


class MonitoringLineTracer:
    """The same by sys.monitoring, which costs time only in the lines of the loop."""

    rests = False
    wakes = 0
    cost_s = 0.0

    def __init__(self, code: CodeType, seen: LineCallback, *, head: int) -> None:
        self.given_up = ""
        self._code, self._seen, self._head = code, seen, head
        self._api: Any = getattr(sys, "monitoring", None)
        self._tool = -1
        self._again: dict[int, int] = {}  # by line: how often it began in this iteration
        self._mutex = threading.Lock()

    def start(self) -> None:
        """Begin with the loop's next line."""
        free = [tool for tool in TOOLS if self._api.get_tool(tool) is None]
        if not free:
            self.given_up = TRACER_IN_USE
            return
        self._tool = free[0]
        self._api.use_tool_id(self._tool, "fastfeed")
        for event, call in self._events():
            self._api.register_callback(self._tool, event, call)
        self._api.set_local_events(
            self._tool, self._code, sum(event for event, _ in self._events())
        )

    def stop(self) -> None:
        """Report nothing from here on."""
        with self._mutex:
            tool, self._tool = self._tool, -1
        if tool >= 0:
            self._api.set_local_events(tool, self._code, 0)
            for event, _ in self._events():
                self._api.register_callback(tool, event, None)
            self._api.free_tool_id(tool)

    def wake(self) -> None:
        """Do nothing: it never rests."""

    def _events(self) -> tuple[tuple[int, Callable[..., Any]], ...]:
        return (self._api.events.LINE, self._line), (self._api.events.PY_RETURN, self._return)

    def _line(self, code: CodeType, line: int) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return None
        self._seen(line, perf_counter())
        if line == self._head:
            self._again.clear()
            return None
        self._again[line] = self._again.get(line, 0) + 1
        # an inner loop; its first line is another place of the same line, and still reported
        return self._api.DISABLE if self._again[line] > MAX_LINE_REPEATS else None

    def _return(self, code: CodeType, *_: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            self._seen(0, perf_counter())
