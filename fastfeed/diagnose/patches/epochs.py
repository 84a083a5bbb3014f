"""Epochs that may end before their data."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from fastfeed.diagnose.patches.names import SCOPES, path_of, read
from fastfeed.diagnose.patches.proposal import PatchCase
from fastfeed.diagnose.patches.source_file import SourceFile, called

SHORTENED = {"zip", "islice"}
Loop = ast.For | ast.While


def is_left_early(case: PatchCase) -> bool:
    """Return True if an epoch may end before its data, which tf.data, or a DataLoader, reads from
    the begin in the next one. A runner over a stream would go on behind what was taken."""
    if any(_takes_less(file) for file in case.files.values()):
        return True
    at = case.loop_line()
    if at is None:
        return False
    file, line = at
    loops: list[Loop] = file.around(line, ast.For, ast.While)
    around: list[ast.FunctionDef] = file.around(line, ast.FunctionDef)
    again = _is_repeated(case, {one.name for one in around})
    if case.diagnosis.evidence.loop is not None and case.diagnosis.evidence.loop.kind == "keras":
        return bool(loops or again) and "steps_per_epoch" in _keywords(file)
    if not loops:
        return False
    loop, outer = loops[0], loops[1:]
    if again and any(_exits(loop.body, kind=ast.Return)):
        return True
    if not (outer or again):
        return False
    if isinstance(loop, ast.For) and loop.lineno != line:
        return True  # it takes so many batches by `next`
    tests = {name for one in outer if isinstance(one, ast.While) for name in read([one.test])}
    return _is_shortened(loop) or any(
        not tests & _conditions(file, one, within=loop) for one in _exits(loop.body, kind=ast.Break)
    )


def _takes_less(file: SourceFile) -> bool:
    """Return True if a file may take a part of a data set."""
    calls = (one for one in ast.walk(file.tree) if isinstance(one, ast.Call))
    taken = [path_of(one.func).partition(".")[0] for one in calls if called(one) == "take"]
    return "validation_steps" in _keywords(file) or bool(set(taken) - file.modules)


def _keywords(file: SourceFile) -> set[str | None]:
    return {one.arg for one in ast.walk(file.tree) if isinstance(one, ast.keyword)}


def _is_shortened(loop: Loop) -> bool:
    """Return True for a loop over the data and something else, or over a part of them."""
    given = ast.walk(loop.iter) if isinstance(loop, ast.For) else ()
    return bool({called(one) for one in given if isinstance(one, ast.Call)} & SHORTENED)


def _is_repeated(case: PatchCase, names: set[str]) -> bool:
    """Return True if one of the functions with these names is called in a loop, or by a function
    that is."""
    nodes = [node for file in case.files.values() for node in ast.walk(file.tree)]
    inside = {name for one in nodes if isinstance(one, Loop) for name in _calls(one)}
    calls = {one.name: _calls(one) for one in nodes if isinstance(one, ast.FunctionDef)}
    known: set[str] = set()
    while names - known:
        known |= names
        names = {name for name, others in calls.items() if others & known}
    return bool(known & inside)


def _calls(node: ast.AST) -> set[str]:
    return {called(one) for one in ast.walk(node) if isinstance(one, ast.Call)}


def _exits(nodes: Iterable[ast.AST], *, kind: type[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that leave the loop with this body, except in the handler of an
    exception: the data have ended there."""
    for node in nodes:
        if isinstance(node, kind):
            yield node
        if isinstance(node, (*SCOPES, ast.ExceptHandler)):
            continue
        if kind is not ast.Break or not isinstance(node, Loop):
            yield from _exits(ast.iter_child_nodes(node), kind=kind)


def _conditions(file: SourceFile, exit_: ast.stmt, *, within: Loop) -> set[str]:
    """Return the names that are read to decide if a statement leaves a loop."""
    found: set[str] = set()
    for one in file.ancestors(exit_):
        if one is within:
            break
        found |= read([one.test]) if isinstance(one, ast.If) else set()
    return found
