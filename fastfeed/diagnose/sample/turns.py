"""Marks at both ends of each iteration of a script's loops, for Python versions that do not report
lines: samples alone would miss iterations in which they meet only one line."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import partial

from fastfeed.diagnose.sample.loop_statements import LoopNode, is_named_step, statements
from fastfeed.steps.watch import watch

COMPILED = {"jit", "njit", "compile", "script", "function"}  # last names of decorators
LOOPS_AND_SCOPES = (
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Lambda,
)
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
    """Let the loops of a script call `turn` if they have a step with a name; those that ask an
    iterator also call `ask` and `end`. No line gets another number."""
    for block in list(_blocks(tree)):
        for loop in [one for one in block if isinstance(one, LoopNode)]:
            head, *body = statements(loop)
            if not any(map(is_named_step, body)):
                continue
            mark = partial(_mark, file=file, line=loop.lineno)
            asks = head.asks and isinstance(loop, ast.For)
            for inner in list(_blocks(loop, within=True)) if asks else []:
                for one in [one for one in inner if isinstance(one, ast.Continue)]:
                    inner.insert(inner.index(one), mark(ask, at=one))
            loop.body.insert(0, mark(turn, at=loop.body[0]))
            if asks:
                block.insert(block.index(loop), mark(ask, at=loop))
                loop.body.append(mark(ask, at=loop.body[-1]))
                loop.orelse.insert(0, mark(end, at=loop))


def _blocks(node: ast.AST, *, within: bool = False) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements below a node; `within`: not those of other loops and functions.
    Functions that a decorator compiles may call nothing else."""
    for _, value in ast.iter_fields(node):
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            yield value
    for child in ast.iter_child_nodes(node):
        names = {_called(one) for one in getattr(child, "decorator_list", ())}
        if not names & COMPILED and not (within and isinstance(child, LOOPS_AND_SCOPES)):
            yield from _blocks(child, within=within)


def _called(decorator: ast.expr) -> str:
    """Return the last name of a decorator."""
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    return str(getattr(function, "attr", getattr(function, "id", "")))


def _mark(function: Callable[[str, int], None], *, at: ast.stmt, file: str, line: int) -> ast.stmt:
    (mark,) = ast.parse(CALL.format(function.__name__, file, line)).body
    for node in ast.walk(mark):
        ast.copy_location(node, at)
    return mark
