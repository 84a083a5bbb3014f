"""Marks at both ends of each iteration of a script's loops, for Python versions that do not report
lines: samples alone would miss iterations in which they meet only one line."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import partial

from fastfeed.diagnose.sample.loop_statements import LoopNode, is_named_step, statements
from fastfeed.steps.watch import watch

CALL = f"__import__({__name__!r}, fromlist=['*']).{{}}({{!r}}, {{}})"


def turn(file: str, line: int) -> None:
    """Record that an iteration of the loop at a line begins, if a diagnosis runs."""
    log = watch.log
    if log is not None and log.active:
        log.add_turn(file, line)  # type: ignore[attr-defined]  # a diagnosis has a HookLog


def ask(file: str, line: int) -> None:
    """Record that the next iteration of such a loop is asked for."""
    log = watch.log
    if log is not None and log.active:
        log.ask_turn(file, line)  # type: ignore[attr-defined]


def end(file: str, line: int) -> None:
    """Record that such a loop has no more iterations."""
    log = watch.log
    if log is not None and log.active:
        log.end_turns(file, line)  # type: ignore[attr-defined]


def add_turns(tree: ast.Module, file: str) -> None:
    """Let the loops of a script call `turn` if they have a step with a name, and the others where
    they ask an iterator. No line gets another number."""
    for block in list(_blocks(tree)):
        for loop in [one for one in block if isinstance(one, LoopNode)]:
            head, *body = statements(loop)
            if not any(map(is_named_step, body)):
                continue
            mark = partial(_mark, file=file, line=loop.lineno)
            loop.body.insert(0, mark(turn, at=loop.body[0]))
            if head.asks and isinstance(loop, ast.For):
                block.insert(block.index(loop), mark(ask, at=loop))
                loop.body.append(mark(ask, at=loop.body[-1]))
                loop.orelse.insert(0, mark(end, at=loop))


def _blocks(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield value


def _mark(function: Callable[[str, int], None], *, at: ast.stmt, file: str, line: int) -> ast.stmt:
    (mark,) = ast.parse(CALL.format(function.__name__, file, line)).body
    for node in ast.walk(mark):
        ast.copy_location(node, at)
    return mark
