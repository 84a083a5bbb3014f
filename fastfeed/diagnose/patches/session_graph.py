"""Runs of a session in the text of a script: what they are fed, as which dtype, and what is bound
when a graph is built."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Set

from fastfeed.diagnose.patches.names import (
    COMPREHENSIONS,
    LOOPS,
    SCOPES,
    SHARED_NAMES,
    below,
    bound,
    called_on,
    changed,
    own,
    path_of,
    read_first,
    touches,
)
from fastfeed.diagnose.patches.proposal import SHOWING, imported_by
from fastfeed.diagnose.patches.source_file import Edit, SourceFile

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
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


def shown_as_fed(file: SourceFile, run: ast.Call, *, keys: Iterable[ast.expr]) -> tuple[Edit, ...]:
    """Return the edits that show what a run feeds to these placeholders."""
    begin, end = file.span(feed_dict(run) or run)
    places = "".join(f", {file.source(one)}" for one in keys)
    before = Edit(file.name, begin, begin, SHOWING.format("fed("))
    return before, Edit(file.name, end, end, f"{places})")


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


def names_in(file: SourceFile, scope: ast.AST, *, name: str) -> list[ast.Name]:
    """Return the nodes that mean the name of a function or file, also in functions within it."""
    found = []
    for node in ast.walk(scope):
        if isinstance(node, ast.Name) and node.id == name:
            inner = itertools.takewhile(lambda one: one is not scope, file.ancestors(node))
            if not any(name in own_names(one) for one in inner):
                found.append(node)
    return found


def own_names(node: ast.AST) -> set[str]:
    """Return the names that belong to a function or comprehension."""
    if isinstance(node, COMPREHENSIONS):
        return set(bound(one.target for one in node.generators))
    if not isinstance(node, (*FUNCTIONS, ast.Lambda)):
        return set()
    arguments = {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}
    body = node.body if isinstance(node, FUNCTIONS) else []
    shared = (one for part in body for one in own(part) if isinstance(one, SHARED_NAMES))
    return {*arguments, *bound(body)} - {name for one in shared for name in one.names}


def repeats(file: SourceFile, node: ast.AST, *, seen: tuple[ast.AST, ...] = ()) -> bool:
    """Return True if a node may run more than once: in a loop, or in a function that is called in
    one, or by several calls."""
    for one in file.ancestors(node):
        if isinstance(one, (*LOOPS, ast.While, *COMPREHENSIONS, ast.Lambda)):
            return True
        if isinstance(one, FUNCTIONS):
            owner = next(file.ancestors(one))
            init = one.name == "__init__" and isinstance(owner, ast.ClassDef)
            name = owner.name if init and isinstance(owner, ast.ClassDef) else one.name
            inner = set(ast.walk(one))
            calls = [
                other
                for other in ast.walk(file.tree)
                if getattr(other, "attr", getattr(other, "id", "")) == name and other not in inner
            ]
            again = one in seen or len(calls) > 1
            return again or any(repeats(file, call, seen=(*seen, one)) for call in calls)
    return False


def followed(file: SourceFile, nodes: Iterable[ast.AST]) -> list[ast.FunctionDef]:
    """Return the functions of a file that nodes call by name, and those that these call."""
    found: list[ast.FunctionDef] = []
    parts = list(nodes)
    functions = [one for one in ast.walk(file.tree) if isinstance(one, ast.FunctionDef)]
    while parts:
        calls = [one.func for one in below(parts) if isinstance(one, ast.Call)]
        names = {one.id for one in calls if isinstance(one, ast.Name)}
        parts = [one for one in functions if one.name in names and one not in found]
        found += [one for one in parts if isinstance(one, ast.FunctionDef)]
    return found


def reads_of(function: ast.FunctionDef) -> set[str]:
    """Return the names of others that a function reads."""
    names = {name.partition(".")[0] for name in read_first(function.body)}
    return names - {one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)}


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
        # of a block, whose statements come one by one, only the head
        parts = _head_of(node) if hasattr(node, "body") else [node]
        made = _bound_by(node) | set(bound(_head_of(node)))
        other = {one.partition(".")[0] for one in changed(parts)} - file.modules
        if since and any(touches(a, b) for a in owners for b in called_on(parts)):
            return True
        if other & names or made & (names if since else seen):
            return True
        seen |= made & names
    return False


def _head_of(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return [one.context_expr for one in node.items]
    found = (getattr(node, name, None) for name in ("test", "iter", "subject"))
    return [one for one in found if isinstance(one, ast.AST)]


def _bound_by(node: ast.AST) -> set[str]:
    """Return the names that a statement binds, but for those of the statements in it."""
    if isinstance(node, SCOPES):
        return {getattr(node, "name", "")}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {one.asname or one.name.partition(".")[0] for one in node.names}
    if isinstance(node, ast.ExceptHandler):
        return {node.name or ""}
    if isinstance(node, LOOPS):
        return set(bound([node.target]))
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return set(bound(one.optional_vars for one in node.items if one.optional_vars))
    return set() if hasattr(node, "body") else set(bound([node]))
