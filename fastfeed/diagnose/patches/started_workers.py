"""Threads and processes that a script starts, and producers that run their function."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from typing import NamedTuple

from fastfeed.diagnose.diagnosis import Recommendation
from fastfeed.diagnose.patches.datasets import producer_words
from fastfeed.diagnose.patches.drawn_seed import drawn_seed
from fastfeed.diagnose.patches.names import (
    LOOPS,
    OWNER,
    SCOPES,
    changed_outside,
    functions_of,
    is_endless,
    only_seeds,
    own,
    path_of,
    read,
)
from fastfeed.diagnose.patches.proposal import ALONE, PatchCase
from fastfeed.diagnose.patches.source_file import Edit, SourceFile, called, edited

WORKERS = ("Thread", "Process")
SINGLE = (ALONE, "processes=1")


class Filling(NamedTuple):
    """A function of a file that threads or processes run to fill a queue, how they are started, and
    the arguments by parameter.

    Where each of them gets its number, other than as a seed, it may read its share: then there are
    as many producers, so that no share is left out.
    """

    file: SourceFile
    function: ast.FunctionDef
    start: Start
    given: dict[str, ast.expr]
    name: str  # of the function, as it is started

    def call(self, *, without: set[str], put: ast.stmt) -> str:
        """Return the text of a producer's stream, with None for the parameters `without`, and for
        `self` where only the statement `put` reads it: what it holds need not be pickled."""
        texts = [
            "None" if name in without else self.start.number(self.file, value)
            for name, value in self.given.items()
        ]
        owner = next(self.file.ancestors(self.function))
        gone = {id(node) for node in ast.walk(put)}
        reads = (one for one in ast.walk(self.function) if getattr(one, "id", "") == OWNER)
        if isinstance(owner, ast.ClassDef) and all(id(one) in gone for one in reads):
            return (
                f"lambda worker: {owner.name}.{self.function.name}({', '.join(['None', *texts])})"
            )
        return f"lambda worker: {self.name}({', '.join(texts)})"

    def outer(self, path: str) -> str:
        """Return the name outside of the function of what has a name inside."""
        return path_of(self.given[path]) if path in self.given else path

    def options(
        self, case: PatchCase, *, besides: Set[str]
    ) -> Iterator[tuple[str, Recommendation | None, bool]]:
        """Yield the options of producers, the advice that names them, and True if the batches of
        one thread may not depend on those before; `besides`: what the function changes for the
        queue, which goes."""
        several = bool(self.start.size)  # which share what they change by now
        shared = changed_outside(self.function, modules=self.file.modules) - besides
        endless = self._is_endless
        apart = self._numbered or (several and endless and not shared)
        told = case.is_told(self.file, by=self.function, besides=besides)
        words = dict(
            producer_words(case, copies=several or endless, apart=several or not shared, told=told)
        )
        if self._numbered:
            every = (f"{kind}={self.start.size}" for kind in ("threads", "processes"))
            words = {one: words.get(one) for one in every}
        for one, advice in words.items():
            # Each of several that a single one was, and of processes that were threads, may read
            # all records, unless they share them out, as a server does.
            copied = one not in SINGLE and not (several and one.startswith("threads="))
            yield one, advice, copied and not apart

    def seed(self, case: PatchCase, words: str) -> str:
        """Return the option of the seed of a runner in place of them."""
        return drawn_seed(case, self.file, body=self.function.body, options=words)

    @property
    def _is_endless(self) -> bool:
        """True if the function loops without an end, or over a generator of the file that does."""
        loops = (one for part in self.function.body for one in own(part) if isinstance(one, LOOPS))
        made = (one.iter for one in loops if isinstance(one.iter, ast.Call))
        sources = (found for one in made for found in functions_of(self.file, one))
        return any(map(is_endless, (self.function, *sources)))

    @property
    def _numbered(self) -> bool:
        return any(
            self.start.target in read([value]) and not only_seeds(self.function, name)
            for name, value in self.given.items()
        )


def fillings_of(file: SourceFile) -> Iterator[Filling]:
    """Yield the functions of a file that nothing but threads or processes run, but for
    generators."""
    for call in ast.walk(file.tree):
        started = started_by(file, call)
        start = start_of(file, call) if started and isinstance(call, ast.Call) else None
        if started is None or start is None or not isinstance(call, ast.Call):
            continue
        function, given = started
        nodes = (node for one in function.body for node in own(one))
        target = next(one.value for one in call.keywords if one.arg == "target")
        alone = len(file.loads(path_of(target))) == 1
        if alone and not any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in nodes):
            yield Filling(file, function, start, given, path_of(target))


def started_by(
    file: SourceFile, call: ast.AST
) -> tuple[ast.FunctionDef, dict[str, ast.expr]] | None:
    """Return the function, or the method of `self`, that a call of Thread or Process runs, and its
    arguments by parameter; None for another call, a function of another file, and arguments in
    another form."""
    if not isinstance(call, ast.Call) or called(call) not in WORKERS:
        return None
    given = {one.arg: one.value for one in call.keywords}
    owner, _, target = path_of(given.get("target", call)).rpartition(".")
    functions = [
        one
        for one in ast.walk(file.tree)
        if isinstance(one, ast.FunctionDef) and one.name == target
    ]
    arguments = given.get("args", ast.Tuple([], ast.Load()))
    if len(functions) != 1 or "kwargs" in given or not isinstance(arguments, (ast.Tuple, ast.List)):
        return None
    parameters = [one.arg for one in functions[0].args.args]
    if owner:
        parameters = parameters[1:] if owner == OWNER else []
    if len(parameters) != len(arguments.elts) or owner not in ("", OWNER):
        return None
    return functions[0], dict(zip(parameters, arguments.elts, strict=True))


class Start(NamedTuple):
    """The statement that makes threads, those that only call their methods, the name that counts
    them, and how many there are ("" for a single one)."""

    statement: ast.stmt
    calls: list[ast.stmt]
    target: str
    size: str

    def number(self, file: SourceFile, argument: ast.expr) -> str:
        """Return the text of an argument in a producer: its number in place of the counter."""
        begin, _ = file.span(argument)
        names = [one for one in ast.walk(argument) if isinstance(one, ast.Name)]
        spans = [file.span(one) for one in names if one.id == self.target]
        edits = [Edit(file.name, a - begin, b - begin, "worker.index") for a, b in spans]
        return edited(file.source(argument), edits)


def start_of(file: SourceFile, call: ast.Call) -> Start | None:
    """Return how a call makes threads; None for a form that is not known."""
    statement = file.statement_of(call)
    if isinstance(statement, ast.Expr):
        started = statement.value
        if not isinstance(started, ast.Call) or getattr(started.func, "value", None) is not call:
            return None
        loop = next(file.ancestors(statement))
        if isinstance(loop, ast.For) and loop.body == [statement] and _counts(loop.iter):
            return Start(loop, [], path_of(loop.target), _counted(file, loop.iter))
        return None if isinstance(loop, (ast.For, ast.While)) else Start(statement, [], "", "")
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    name, value, target, count = path_of(statement.targets[0]), statement.value, "", ""
    if "." in name:  # any method may use it
        return None
    if isinstance(value, ast.ListComp) and value.elt is call and len(value.generators) == 1:
        counter = value.generators[0]
        if not _counts(counter.iter) or counter.ifs:
            return None
        target, count = path_of(counter.target), _counted(file, counter.iter)
    elif value is not call:
        return None
    loop = next(file.ancestors(statement))
    if isinstance(loop, (ast.For, ast.While)) and value is call:
        return _in_loop(file, loop, statement=statement, name=name)
    calls = _calls_of(file, name, besides=statement)
    return None if not name or calls is None else Start(statement, calls, target, count)


def _in_loop(
    file: SourceFile, loop: ast.For | ast.While, *, statement: ast.Assign, name: str
) -> Start | None:
    """Return how a loop makes threads, if its body only makes one, sets, starts and collects it."""
    if isinstance(loop, ast.While) or not _counts(loop.iter):
        return None
    inside = {id(node) for node in ast.walk(loop)}
    others = [one for one in loop.body if one is not statement]
    functions = (one for one in file.ancestors(loop) if isinstance(one, SCOPES))
    scope = next(functions, file.tree)
    loads = (one for one in own(scope) if isinstance(one, ast.Name) and one.id == name)
    if any(id(one) not in inside for one in loads if isinstance(one.ctx, ast.Load)) or not all(
        _only_calls(one, name) or _collects(one, name) for one in others
    ):
        return None
    return Start(loop, [], path_of(loop.target), _counted(file, loop.iter))


def _collects(statement: ast.stmt, name: str) -> bool:
    """Return True for `threads.append(thread)`."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return (
        isinstance(call, ast.Call)
        and called(call) == "append"
        and [path_of(one) for one in call.args] == [name]
    )


def _calls_of(file: SourceFile, name: str, *, besides: ast.stmt) -> list[ast.stmt] | None:
    """Return the statements that call methods of what a name holds, or of its elements, or set
    their attributes; None if others read it."""
    found: dict[ast.stmt, None] = {}
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            statement = file.statement_of(node)
            if isinstance(statement, ast.For) and statement.iter is node:
                inner = [_only_calls(one, path_of(statement.target)) for one in statement.body]
                if not all(inner):
                    return None
            elif not _only_calls(statement, name):
                return None
            found[statement] = None
    return [one for one in found if one is not besides]


def _only_calls(statement: ast.stmt, name: str) -> bool:
    """Return True if a statement calls a method of a name, or sets an attribute of it, alone."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return path_of(getattr(statement.value.func, "value", statement)) == name
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return bool(targets) and all(path_of(getattr(one, "value", one)) == name for one in targets)


def _counted(file: SourceFile, source: ast.expr) -> str:
    """Return the text of the number of a `range`."""
    return file.source(source.args[0]) if isinstance(source, ast.Call) else ""


def _counts(source: ast.expr) -> bool:
    return isinstance(source, ast.Call) and called(source) == "range" and len(source.args) == 1
