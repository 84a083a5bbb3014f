"""Tools for hooks: replacing a method, timing its calls, and walking the calling frames."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.steps.recorder import StepRecorder
from fastfeed.steps.timeline import Mark

MIN_MARK_S = 0.001  # shorter calls are no mark
MAX_NESTED_MARKS = 8  # latest marks that may lie within a new one
RECORDER = "_fastfeed_steps"  # attribute of an object that is iterated over: its recorder
Undo = Callable[[], None]


def calling_frames() -> Iterator[FrameType]:
    """Yield the frames of this thread, from the one that iterates outwards."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def patch(owner: Any, name: str, *, wrap: Callable[[Any], Any]) -> Undo:
    """Replace a class's own attribute by `wrap(original)`.

    The returned function restores the original, unless the attribute was replaced again.
    """
    original = owner.__dict__[name]
    wrapped = wrap(original)
    setattr(owner, name, wrapped)

    def undo() -> None:
        if owner.__dict__.get(name) is wrapped:
            setattr(owner, name, original)

    return undo


def call_before(owner: Any, name: str, *, action: Callable[..., None]) -> Undo:
    """Patch a method so that `action` is called with the same arguments before it."""

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            action(*args, **kwargs)
            return original(*args, **kwargs)

        return call

    return patch(owner, name, wrap=wrap)


def undo_all(undos: list[Undo]) -> Undo:
    """Return one function that undoes all patches, the latest first."""

    def undo() -> None:
        while undos:
            undos.pop()()

    return undo


def recorder_of(
    owner: Any, log: HookLog, *, create: Callable[[Any, HookLog], StepRecorder]
) -> StepRecorder | None:
    """Return the recorder of an object that is iterated over, created if the log is active.

    The object holds it: no object that lives longer may refer to an iterator, whose workers end
    when the last reference to it goes.
    """
    steps: StepRecorder | None = owner.__dict__.get(RECORDER)
    if steps is None and log.active:
        steps = owner.__dict__[RECORDER] = create(owner, log)
    return steps


class CallTimer:
    """Records calls that take more than a millisecond as marks.

    Only the outermost of nested calls is recorded. A call that contains other marks (a callback
    that saves a checkpoint) is recorded only if the rest of it took more than a millisecond.
    """

    def __init__(self, log: HookLog) -> None:
        self._log = log
        self._running: set[tuple[int, str]] = set()

    def method(self, owner: Any, name: str, *, kind: str, label: str = "") -> Undo:
        """Time a method of a class; do nothing if the class does not define it."""
        if name not in owner.__dict__:
            return lambda: None
        return patch(owner, name, wrap=lambda original: self._wrap(original, kind, label=label))

    def _wrap(self, original: Callable[..., Any], kind: str, *, label: str) -> Callable[..., Any]:
        log, running = self._log, self._running

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            key = (threading.get_ident(), kind)
            if not log.active or key in running:
                return original(*args, **kwargs)
            running.add(key)
            start_s = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                running.discard(key)
                end_s = time.perf_counter()
                latest = log.timeline.marks[-MAX_NESTED_MARKS:]
                nested_s = sum(m.end_s - m.start_s for m in latest if m.start_s >= start_s)
                if end_s - start_s - nested_s > MIN_MARK_S:
                    log.add_mark(Mark(kind, start_s, end_s, label or type(args[0]).__name__))

        return call
