"""A FeedRunner in place of threads or processes that fill a queue of the script's own."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from fastfeed.diagnose.patches.names import SCOPES, own, path_of
from fastfeed.diagnose.patches.proposal import (
    ALONE,
    COMPARED,
    RUNNER,
    PatchCase,
    Proposal,
    fresh,
    imported_by,
)
from fastfeed.diagnose.patches.source_file import Edit, SourceFile, called
from fastfeed.diagnose.patches.started_workers import WORKERS, Filling, fillings_of


class HandmadeQueue:
    """Producers run the function that the script's threads or processes run. What it puts into
    their queue, it yields, and the loop takes it from the runner."""

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        started = [(file, call) for _, file, call in case.sites(*WORKERS)]
        found = [
            one
            for file in dict.fromkeys(file for file, _ in started)
            for one in _queues_of(file)
            if any(call in ast.walk(part) for _, call in started for part in one.starts)
        ]
        if len(found) != 1:
            return
        (filled,) = found
        file, name = filled.filling.file, filled.filling.name
        sinks = [f".{one}()" for one in ("torch", "jax") if one in imported_by(file)]
        put, imports = _queue_in(filled.put, "put"), case.runner_import(file)
        for words, advice, whole in filled.filling.options(case, besides={put}):
            seed, forms = filled.filling.seed(case, words), []
            for sink in (*sinks, ""):
                edits = filled.edits(words + seed, sink)
                if edits:
                    title = f"{RUNNER}({name}, {words}){sink} in place of the queue"
                    one = Proposal(title, (*imports, *edits), advice, makes=True, allows=COMPARED)
                    single = (*imports, *filled.edits(ALONE, sink)) if whole else None
                    forms.append(replace(one, single=single))
            if forms:
                yield replace(forms[0], instead=tuple(forms[1:]))


class _Filled(NamedTuple):
    """A queue that one function fills."""

    filling: Filling
    put: ast.Expr
    stores: list[ast.stmt]  # that make the queue
    gets: list[ast.expr]  # `queue.get`, and `queue.get()`

    @property
    def starts(self) -> list[ast.stmt]:
        """The statements that make, start, join or set the threads, or make the queue."""
        start = self.filling.start
        return [start.statement, *start.calls, *self.stores]

    def edits(self, words: str, sink: str) -> tuple[Edit, ...]:
        """Return the edits, none if the text does not allow them."""
        file, call = self.filling.file, self.put.value
        assert isinstance(call, ast.Call)
        batches = fresh(file, "made_batches")
        source = self.filling.call(without={_queue_in(self.put, "put")}, put=self.put)
        made, *others = self.starts
        found = [
            file.replaced(self.put, f"yield {file.source(call.args[0])}"),
            file.replaced(made, f"{batches} = iter({RUNNER}({source}, {words}){sink})"),
            *(file.left_out(one) for one in others),
        ]
        for get in self.gets:
            taken = f"next({batches})" if isinstance(get, ast.Call) else f"{batches}.__next__"
            found.append(file.replaced(get, taken))
        return tuple(found) if None not in found else ()  # type: ignore[arg-type]


def _queues_of(file: SourceFile) -> Iterator[_Filled]:
    """Yield the queues of a file that nothing but one function fills."""
    yield from filter(None, (_filled(one) for one in fillings_of(file)))


def _filled(filling: Filling) -> _Filled | None:
    """Return the queue that a function fills; None if it does more with it, or others do."""
    file, function, made = filling.file, filling.function, filling.start
    nodes = [node for one in function.body for node in own(one)]
    puts = [node for node in nodes if isinstance(node, ast.Expr) and _queue_in(node, "put")]
    inside = _queue_in(puts[0], "put") if len(puts) == 1 else ""
    if _loads(function, inside) != 1:
        return None
    queue = filling.outer(inside)
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
    return _Filled(filling, puts[0], [*_stores(file, queue)], gets) if gets else None


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
