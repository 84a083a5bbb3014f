"""What hooks of classes need: to put something in a method's place, what it takes, and who
calls."""

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
    from fastfeed.diagnose.hooks.context import Context

WORTH_A_MARK_S = 0.001
NEAR = 8  # the last marks, which may lie within the newest
Undo = Callable[[], None]


def frames(depth: int = 1) -> Iterator[FrameType]:
    """The frames of this thread from the caller's `depth`-th caller outwards."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        yield frame
        frame = frame.f_back


def patch(owner: Any, name: str, *, wrap: Callable[[Any], Any]) -> Undo:
    """Puts `wrap(original)` in the place of a class's own method; the way back leaves what somebody
    put over it."""
    plain = owner.__dict__[name]
    wrapped = wrap(plain)
    setattr(owner, name, wrapped)

    def undo() -> None:
        if owner.__dict__.get(name) is wrapped:
            setattr(owner, name, plain)

    return undo


def undo_all(undos: list[Undo]) -> Undo:
    """All of them, the latest first."""

    def undo() -> None:
        while undos:
            undos.pop()()

    return undo


def keep(loop: Loop, step: Step, *, most: int | None) -> None:
    """Adds a step to a loop, of which `most` are kept, or all."""
    loop.steps.append(step)
    if most is not None and len(loop.steps) > most:
        del loop.steps[: len(loop.steps) // 2]


class Timed:
    """Makes marks of what a call takes, where that is more than a millisecond.

    The outermost of nested calls counts. What has marks inside (a checkpoint that a callback makes)
    counts only if it took that much beside them.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._inside: set[tuple[int, str]] = set()

    def method(self, owner: Any, name: str, *, kind: str, label: str = "") -> Undo:
        """Times a method of a class; one that the class does not have is passed over."""
        if name not in owner.__dict__:
            return lambda: None
        return patch(owner, name, wrap=lambda plain: self._around(plain, kind, label=label))

    def _around(self, plain: Callable[..., Any], kind: str, *, label: str) -> Callable[..., Any]:
        context, inside = self._context, self._inside

        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            thread = threading.get_ident()
            if not context.active or (thread, kind) in inside:
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
                    for m in context.timeline.marks[-NEAR:]
                    if m.start_s >= start_s
                )
                if end_s - start_s - within > WORTH_A_MARK_S:
                    context.timeline.marks.append(
                        Mark(kind, start_s, end_s, label or type(args[0]).__name__)
                    )

        return call
