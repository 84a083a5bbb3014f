"""A FeedRunner in place of threads or processes that fill a queue of the script's own."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from fastfeed.diagnose.patches.datasets import is_endless, producer_words
from fastfeed.diagnose.patches.names import (
    SCOPES,
    changed_outside,
    only_seeds,
    own,
    path_of,
    read,
)
from fastfeed.diagnose.patches.producers import SAME_RECORDS
from fastfeed.diagnose.patches.proposal import RUNNER, PatchCase, Proposal, fresh, imported_by
from fastfeed.diagnose.patches.source_file import (
    WORKERS,
    Edit,
    SourceFile,
    called,
    edited,
    started_by,
)
from fastfeed.diagnose.proof import UNKNOWN, WORDS


class HandmadeQueue:
    """Producers run the function that the script's threads or processes run. What it puts into
    their queue, it yields, and the loop takes it from the runner.

    Where each of them gets its number, other than as a seed, it may read its share: then there are
    as many producers, so that no share is left out.
    """

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        started = [(file, call) for _, file, call in case.sites(*WORKERS)]
        found = [
            one
            for file in dict.fromkeys(file for file, _ in started)
            for one in _queues_of(file)
            if any(call in ast.walk(part) for _, call in started for part in (one.made, *one.calls))
        ]
        if len(found) != 1:
            return
        (filled,) = found
        file, name = filled.file, filled.function.name
        sinks = [f".{one}()" for one in ("torch", "jax") if one in imported_by(file)]
        several = bool(filled.size)  # which share what they change by now
        endless = is_endless(filled.function)
        copies = several or endless
        apart = several or not filled.changed()
        told = case.is_told(filled.file, by=filled.function)
        options = dict(producer_words(case, copies=copies, apart=apart, told=told))
        if filled.numbered:
            every = (f"{kind}={filled.size}" for kind in ("threads", "processes"))
            options = {one: options.get(one) for one in every}
        for words, advice in options.items():
            forms = []
            # Each of several processes reads all of what threads share until it ends.
            copied = words.startswith("processes=") and words != "processes=1"
            copied = copied and not (endless or filled.numbered)
            for sink in (*sinks, ""):
                edits = filled.edits(words, sink)
                if edits:
                    title = f"{RUNNER}({name}, {words}){sink} in place of the queue"
                    edits = (*case.runner_import(file), *edits)
                    allows = SAME_RECORDS if copied else WORDS[: WORDS.index(UNKNOWN)]
                    forms.append(Proposal(title, edits, advice, makes=True, allows=allows))
            if forms:
                yield replace(forms[0], instead=tuple(forms[1:]))


class _Filled(NamedTuple):
    """A queue that one function fills, in threads or processes that one statement makes."""

    file: SourceFile
    function: ast.FunctionDef
    put: ast.Expr
    made: ast.stmt  # the statement that makes the threads
    calls: list[ast.stmt]  # those that only start, join or set them, or make the queue
    arguments: list[str]
    gets: list[ast.expr]  # `queue.get`, and `queue.get()`
    size: str  # how many are made, "" for one
    numbered: bool  # each gets its number, other than as a seed

    def changed(self) -> set[str]:
        """Return what the function changes in place and does not make, but for the queue."""
        found = changed_outside(self.function, modules=self.file.modules)
        return found - {_queue_in(self.put, "put")}

    def edits(self, words: str, sink: str) -> tuple[Edit, ...]:
        """Return the edits, none if the text does not allow them."""
        file, call = self.file, self.put.value
        assert isinstance(call, ast.Call)
        batches = fresh(file, "made_batches")
        source = f"lambda worker: {self.function.name}({', '.join(self.arguments)})"
        found = [
            file.replaced(self.put, f"yield {file.source(call.args[0])}"),
            file.replaced(self.made, f"{batches} = iter({RUNNER}({source}, {words}){sink})"),
            *(file.left_out(one) for one in self.calls),
        ]
        for get in self.gets:
            taken = f"next({batches})" if isinstance(get, ast.Call) else f"{batches}.__next__"
            found.append(file.replaced(get, taken))
        return tuple(found) if None not in found else ()  # type: ignore[arg-type]


def _queues_of(file: SourceFile) -> Iterator[_Filled]:
    """Yield the queues of a file that nothing but one function fills."""
    for call in ast.walk(file.tree):
        started = started_by(file, call)
        made = _made_by(file, call) if started and isinstance(call, ast.Call) else None
        if started is not None and made is not None:
            function, given = started
            found = _filled(file, function, given=given, made=made)
            if found is not None:
                yield found


def _filled(
    file: SourceFile, function: ast.FunctionDef, *, given: dict[str, ast.expr], made: _Started
) -> _Filled | None:
    """Return the queue that a function fills; None if it does more with it, or others do."""
    nodes = [node for one in function.body for node in own(one)]
    puts = [node for node in nodes if isinstance(node, ast.Expr) and _queue_in(node, "put")]
    if len(puts) != 1 or any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in nodes):
        return None
    inside = _queue_in(puts[0], "put")
    if _loads(function, inside) != 1:
        return None
    queue = path_of(given[inside]) if inside in given else inside
    used = [
        node
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Name) and node.id == queue and isinstance(node.ctx, ast.Load)
    ]
    gets = []
    for node in used:
        around = list(file.ancestors(node))
        if function in around or made.statement in around:
            continue
        taken = _taken(node, around)
        if taken is None or not _sees(around, file.ancestors(made.statement)):
            return None
        gets.append(taken)
    texts = [
        "None" if name == inside else made.number(file, value) for name, value in given.items()
    ]
    if not gets:
        return None
    left = [*made.calls, *_stores(file, queue)]
    numbered = any(
        made.target in read([value]) and not only_seeds(function, name)
        for name, value in given.items()
    )
    return _Filled(
        *(file, function, puts[0], made.statement, left, texts, gets, made.size, numbered)
    )


class _Started(NamedTuple):
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


def _made_by(file: SourceFile, call: ast.Call) -> _Started | None:
    """Return how a call makes threads; None for a form that is not known."""
    statement = file.statement_of(call)
    if isinstance(statement, ast.Expr):
        started = statement.value
        if not isinstance(started, ast.Call) or getattr(started.func, "value", None) is not call:
            return None
        loop = next(file.ancestors(statement))
        if isinstance(loop, ast.For) and loop.body == [statement] and _counts(loop.iter):
            return _Started(loop, [], path_of(loop.target), _counted(file, loop.iter))
        return None if isinstance(loop, (ast.For, ast.While)) else _Started(statement, [], "", "")
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    name, value, target, count = path_of(statement.targets[0]), statement.value, "", ""
    if isinstance(value, ast.ListComp) and value.elt is call and len(value.generators) == 1:
        counter = value.generators[0]
        if not _counts(counter.iter) or counter.ifs:
            return None
        target, count = path_of(counter.target), _counted(file, counter.iter)
    elif value is not call:
        return None
    calls = _calls_of(file, name, besides=statement)
    return None if not name or calls is None else _Started(statement, calls, target, count)


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


def _queue_in(statement: ast.Expr, method: str) -> str:
    """Return the name of the queue that a statement puts one thing into; "" for another one."""
    call = statement.value
    if isinstance(call, ast.Call) and called(call) == method and len(call.args) == 1:
        return path_of(getattr(call.func, "value", statement))
    return ""


def _stores(file: SourceFile, name: str) -> Iterator[ast.stmt]:
    """Yield the statements that assign what a call returns to a name alone."""
    made = (one for one in ast.walk(file.tree) if isinstance(one, ast.Assign))
    alone = (one for one in made if len(one.targets) == 1 and isinstance(one.value, ast.Call))
    yield from (one for one in alone if path_of(one.targets[0]) == name)


def _loads(function: ast.FunctionDef, name: str) -> int:
    return sum(isinstance(one, ast.Name) and one.id == name for one in ast.walk(function))


def _taken(name: ast.Name, around: Sequence[ast.AST]) -> ast.expr | None:
    """Return `queue.get` or `queue.get()` around the name of a queue; None around another use."""
    method = around[0]
    if not isinstance(method, ast.Attribute) or method.attr != "get":
        return None
    outer = around[1]
    return outer if isinstance(outer, ast.Call) and outer.func is method else method


def _sees(around: Sequence[ast.AST], made: Iterator[ast.AST]) -> bool:
    """Return True if a node sees what the function of another one binds."""
    return all(one in around for one in made if isinstance(one, SCOPES))
