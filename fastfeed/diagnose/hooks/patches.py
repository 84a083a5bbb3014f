"""Tools for hooks of classes: replacing a method, its time, and its callers."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from fastfeed.steps.timeline import Loop, Mark, Step

if TYPE_CHECKING:
    from fastfeed.diagnose.hooks.hook_log import HookLog

MIN_MARK_S = 0.001
MAX_NESTED_MARKS = 8  # latest marks, which may lie within the newest
Undo = Callable[[], None]


def frames(depth: int = 1) -> Iterator[FrameType]:
    """Yield the frames of this thread from the caller's `depth`-th caller outwards."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        yield frame
        frame = frame.f_back


def patch(owner: Any, name: str, *, wrap: Callable[[Any], Any]) -> Undo:
    """Replace a class's own method by `wrap(original)`; the returned undo leaves what was put over
    it."""
    plain = owner.__dict__[name]
    wrapped = wrap(plain)
    setattr(owner, name, wrapped)

    def undo() -> None:
        if owner.__dict__.get(name) is wrapped:
            setattr(owner, name, plain)

    return undo


def undo_all(undos: list[Undo]) -> Undo:
    """Return one undo for all, the latest first."""

    def undo() -> None:
        while undos:
            undos.pop()()

    return undo


def keep(loop: Loop, step: Step, *, most: int | None) -> None:
    """Add a step to a loop, of which `most` are kept, or all."""
    loop.steps.append(step)
    if most is not None and len(loop.steps) > most:
        del loop.steps[: len(loop.steps) // 2]


class CallTimer:
    """Makes marks of calls that take more than a millisecond.

    The outermost of nested calls counts. A call with marks inside (a callback that writes a
    checkpoint) counts only if it took that long beside them.
    """

    def __init__(self, log: HookLog) -> None:
        self._log = log
        self._inside: set[tuple[int, str]] = set()

    def method(self, owner: Any, name: str, *, kind: str, label: str = "") -> Undo:
        """Time a method of a class; a method that the class does not have is skipped."""
        if name not in owner.__dict__:
            return lambda: None
        return patch(owner, name, wrap=lambda plain: self._around(plain, kind, label=label))

    def _around(self, plain: Callable[..., Any], kind: str, *, label: str) -> Callable[..., Any]:
        log, inside = self._log, self._inside

        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            thread = threading.get_ident()
            if not log.active or (thread, kind) in inside:
                return plain(*args, **kwargs)
            inside.add((thread, kind))
            start_s = time.perf_counter()
            try:
                return plain(*args, **kwargs)
            finally:
                inside.discard((thread, kind))
                end_s = time.perf_counter()
                within = sum(
                    m.end_s - m.start_s
                    for m in log.timeline.marks[-MAX_NESTED_MARKS:]
                    if m.start_s >= start_s
                )
                if end_s - start_s - within > MIN_MARK_S:
                    log.timeline.marks.append(
                        Mark(kind, start_s, end_s, label or type(args[0]).__name__)
                    )

        return call
