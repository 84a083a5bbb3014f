"""Tracing of the lines of a loop by sys.monitoring, which Python has since 3.12."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable
from time import perf_counter
from types import CodeType
from typing import Any

# times that a line begins in one iteration: it belongs to an inner loop, and is no longer traced
MAX_LINE_REPEATS = 50
TOOLS = (4, 3)  # of sys.monitoring: ids that no kind of tool is meant to have
SUSPENDS = (
    inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
    | inspect.CO_ITERABLE_COROUTINE
)
CAN_TRACE_LINES = sys.version_info >= (3, 12)
TRACER_IN_USE = "a debugger or a coverage tool is at work"
# called with a line that begins, and when; line 0: the function is over
LineCallback = Callable[[int, float], None]


class LineTracer:
    """Calls `seen` for the lines of `code` in the main thread, from `start` to `stop`.

    It costs time only in the lines of the loop.
    """

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
