"""Runs of a session in the text of a script: what they are fed, as which dtype, and what is bound
when a graph is built."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Set

from fastfeed.diagnose.patches.names import (
    SCOPES,
    bound,
    called_on,
    changed,
    path_of,
    touches,
)
from fastfeed.diagnose.patches.proposal import SHOWING, imported_by
from fastfeed.diagnose.patches.source_file import Edit, SourceFile

Pair = tuple[ast.expr, ast.expr]  # of a feed_dict
NUMPY_NAMES = ("float32", "float16", "float64", "int32", "int64", "uint8")  # as in TensorFlow


def owner_of(run: ast.Call) -> str:
    """Return the name of the session of a run, "" if it has none."""
    return path_of(run.func.value) if isinstance(run.func, ast.Attribute) else ""


def argument(call: ast.Call, name: str, *, position: int) -> ast.expr | None:
    """Return an argument of a call, given by name or by position."""
    given = next((one.value for one in call.keywords if one.arg == name), None)
    return given or (call.args[position] if position < len(call.args) else None)


def feed_dict(run: ast.Call) -> ast.Dict | None:
    """Return the feed_dict of a run, if it is written there."""
    given = argument(run, "feed_dict", position=1)
    return given if isinstance(given, ast.Dict) else None


def fed_by(run: ast.Call) -> list[Pair]:
    """Return the keys and values of the feed_dict of a run, none if they are not known."""
    given = feed_dict(run)
    if given is None or None in given.keys:
        return []
    return [(key, value) for key, value in zip(given.keys, given.values, strict=True) if key]


def shown_as_fed(file: SourceFile, statement: ast.stmt, pairs: Iterable[Pair]) -> Edit | None:
    """Return the edit that shows what a statement feeds, before it."""
    parts = (f"({file.source(key)}, {file.source(value)})" for key, value in pairs)
    return file.inserted(statement, [SHOWING.format(f"fed({', '.join(parts)})")])


def package_of(file: SourceFile, call: ast.Call) -> str:
    """Return the package of a function of TensorFlow as the script calls it, "" if it has none."""
    function = call.func
    found = file.source(function.value) if isinstance(function, ast.Attribute) else ""
    return found.removesuffix(".queue")


def array_of(file: SourceFile, value: ast.expr, *, dtype: ast.expr | None, package: str) -> str:
    """Return the text of a new array of what is fed, as the dtype that the graph gets, "" if that
    is not known: the script may fill the old one again."""
    numpy = imported_by(file).get("numpy")
    if dtype is None or not numpy or not package:
        return ""
    text, name = file.source(dtype), path_of(dtype).rpartition(".")[2]
    if isinstance(dtype, ast.Constant):
        name = str(dtype.value)
    made = f'"{name}"' if name in NUMPY_NAMES else f"{package}.as_dtype({text}).as_numpy_dtype"
    return f"{numpy}.array({file.source(value)}, {made})"


def tuple_of(parts: Iterable[str]) -> str:
    """Return the text of a tuple."""
    given = list(parts)
    return f"({', '.join(given)}{',' * (len(given) == 1)})"


def scope_of(file: SourceFile, node: ast.AST) -> ast.AST:
    """Return the function that a node is in, else the file."""
    return next((one for one in file.ancestors(node) if isinstance(one, SCOPES)), file.tree)


def names_in(file: SourceFile, scope: ast.AST, name: str) -> list[ast.Name]:
    """Return the nodes that mean the name of a function or file, also in functions within it."""
    found = []
    for node in ast.walk(scope):
        if isinstance(node, ast.Name) and node.id == name:
            inner = [one for one in file.ancestors(node) if isinstance(one, SCOPES)]
            inner = inner[: inner.index(scope)] if scope in inner else inner
            if not any(name in _own_names(one) for one in inner):
                found.append(node)
    return found


def _own_names(scope: ast.AST) -> set[str]:
    arguments = (one.arg for one in ast.walk(scope) if isinstance(one, ast.arg))
    return {*arguments, *bound(getattr(scope, "body", []) if hasattr(scope, "args") else [])}


def is_changed(
    file: SourceFile,
    names: Set[str],
    *,
    scope: ast.AST,
    since: ast.stmt | None,
    besides: Iterable[ast.stmt] = (),
    owners: Set[str] = frozenset(),
) -> bool:
    """Return True if a statement of a scope, `since` one or, where that is None, a second one,
    binds or changes one of the names, or calls a method of one of the `owners`."""
    gone = {id(node) for one in besides for node in ast.walk(one)}
    seen: set[str] = set()
    for node in ast.walk(scope):
        if not isinstance(node, (ast.stmt, ast.ExceptHandler)) or id(node) in gone:
            continue
        if scope_of(file, node) is not scope or (since and node.lineno <= since.lineno):
            continue
        made, other = _bound_by(node), set[str]()
        if not hasattr(node, "body"):  # whose statements come one by one
            other = {one.partition(".")[0] for one in changed([node])} - file.modules
            if since and any(touches(a, b) for a in owners for b in called_on([node])):
                return True
        if other & names or made & (names if since else seen):
            return True
        seen |= made & names
    return False


def _bound_by(node: ast.AST) -> set[str]:
    """Return the names that a statement binds, but for those of the statements in it."""
    if isinstance(node, SCOPES):
        return {getattr(node, "name", "")}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {one.asname or one.name.partition(".")[0] for one in node.names}
    if isinstance(node, ast.ExceptHandler):
        return {node.name or ""}
    if isinstance(node, (ast.For, ast.AsyncFor)):
        return set(bound([node.target]))
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return set(bound(one.optional_vars for one in node.items if one.optional_vars))
    return set() if hasattr(node, "body") else set(bound([node]))
