"""Marks at both ends of each iteration of a script's loops, for Python versions that do not report
lines: samples alone would miss iterations in which they meet only one line."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial

from fastfeed.diagnose.sample.loop_statements import LoopNode, is_named_step, statements
from fastfeed.steps.watch import watch

CALL = f"__import__({__name__!r}, fromlist=['*']).{{}}({{!r}}, {{}})"


def turn(file: str, line: int) -> None:
    """Record that an iteration of the loop at a line begins, if a diagnosis runs."""
    log = watch.log
    if log is not None and log.active:
        log.add_turn(file, line)  # type: ignore[attr-defined]  # a diagnosis has a HookLog


def turned(file: str, line: int) -> None:
    """Record that such an iteration has run to its end."""
    log = watch.log
    if log is not None and log.active:
        log.end_turn(file, line, last=False)  # type: ignore[attr-defined]


def ended(file: str, line: int) -> None:
    """Record that the loop has no more iterations."""
    log = watch.log
    if log is not None and log.active:
        log.end_turn(file, line, last=True)  # type: ignore[attr-defined]


def add_turns(tree: ast.Module, file: str) -> None:
    """Let the loops of a script call these functions if they have a step with a name. No line gets
    another number."""
    for loop in [node for node in ast.walk(tree) if isinstance(node, LoopNode)]:
        if any(map(is_named_step, statements(loop)[1:])):
            mark = partial(_mark, file=file, line=loop.lineno)
            loop.body.insert(0, mark(turn, at=loop.body[0]))
            loop.body.append(mark(turned, at=loop.body[-1]))
            loop.orelse.insert(0, mark(ended, at=loop))


def _mark(function: Callable[[str, int], None], *, at: ast.stmt, file: str, line: int) -> ast.stmt:
    (mark,) = ast.parse(CALL.format(function.__name__, file, line)).body
    for node in ast.walk(mark):
        ast.copy_location(node, at)
    return mark
