"""Marks at the begin of each iteration of a script's loops, for Python versions that do not report
lines: samples alone would miss iterations in which they meet only one line."""

from __future__ import annotations

import ast

from fastfeed.diagnose.sample.loop_statements import LoopNode, is_named_step, statements
from fastfeed.steps.watch import watch

CALL = f"__import__({__name__!r}, fromlist=['*']).turn({{file!r}}, {{line}})"


def turn(file: str, line: int) -> None:
    """Record that an iteration of the loop at a line begins, if a diagnosis runs."""
    log = watch.log
    if log is not None and log.active:
        log.add_turn(file, line)  # type: ignore[attr-defined]  # a diagnosis has a HookLog


def add_turns(tree: ast.Module, file: str) -> None:
    """Let the loops of a script call `turn` if they have a step with a name. No line gets another
    number."""
    for loop in [node for node in ast.walk(tree) if isinstance(node, LoopNode)]:
        if any(map(is_named_step, statements(loop)[1:])):
            (mark,) = ast.parse(CALL.format(file=file, line=loop.lineno)).body
            for node in ast.walk(mark):
                ast.copy_location(node, loop.body[0])
            loop.body.insert(0, mark)
