"""A FeedRunner within a generator of the script: the body of its loop becomes a function that
several producers run."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from fastfeed.diagnose.patches.generator_call import HAVE_ONE, Function, generators_of
from fastfeed.diagnose.patches.names import (
    LOOPS,
    SCOPES,
    bound,
    changed,
    leaves,
    only_seeds,
    own,
    read,
    read_first,
)
from fastfeed.diagnose.patches.proposal import (
    RUNNER,
    PatchCase,
    Proposal,
    fresh,
    imported_by,
    top_of,
)
from fastfeed.diagnose.patches.serial_loop import (
    Loop,
    modules_of,
    producers_ahead,
    shown_by_loop,
)
from fastfeed.diagnose.patches.source_file import Edit, SourceFile
from fastfeed.diagnose.proof import OTHER_DRAWS, SAME

MAX_NESTED = 4  # generators of one stack
YIELD = "yield"


class GeneratorBody:
    """Producers run the body of a generator's loop, which yields at its end.

    `for item in items: ...; yield batch` becomes `def make_batch(item): ...; return batch`, and
    `yield from` a FeedRunner over the items. The body may keep nothing from one item to the next:
    the text shows it, or else a run with another number of producers.
    """

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        loop = case.diagnosis.evidence.loop
        if loop is None or loop.kind in HAVE_ONE:
            return
        made = (_Body.of(*one) for one in generators_of(case, most=MAX_NESTED))
        body = next((one for one in made if one is not None), None)
        if body is None:
            return
        file, shows = body.file, shown_by_loop(case)
        sinks = [f".{one}()" for one in ("torch", "jax") if one in imported_by(file)]
        for kind, count, advice in producers_ahead(case):
            forms = []
            for sink in ("", *sinks):
                edits, alone = (
                    (*body.edits(f"{kind}={n}", sink), *case.runner_import(file))
                    for n in (count, 1)
                )
                title = f"{RUNNER}(..., transform={body.name}, {kind}={count}){sink}"
                one = Proposal(title, edits, advice, shows=shows, makes=True)
                forms.append(replace(one, alone=alone, allows=(SAME, OTHER_DRAWS)))
            yield replace(forms[0], instead=tuple(forms[1:]))


class _Body(NamedTuple):
    """Loop of a generator that yields at the end of its body, and nowhere else."""

    file: SourceFile
    loop: Loop
    name: str  # of the function that the body becomes
    seed: str  # parameter that only seeds, "" for none

    @classmethod
    def of(cls, file: SourceFile, function: Function) -> _Body | None:
        """Return the loop of a generator; None if its body has another form, or keeps a state."""
        nodes = [node for one in function.body for node in own(one)]
        yields = [node for node in nodes if isinstance(node, (ast.Yield, ast.YieldFrom))]
        loop = _loop_of(file, yields[0]) if len(yields) == 1 else None
        if loop is None or any(isinstance(node, (ast.Global, ast.Nonlocal)) for node in nodes):
            return None
        target = set(bound([loop.target])) if isinstance(loop, ast.For) else set()
        written, needed = set(bound(loop.body)), read_first(loop.body)
        made = (written - needed) | target
        changes = {name.partition(".")[0] for name in changed(loop.body, made=made)}
        kept = (written & (needed - target)) | (changes - made - modules_of(file))
        outside = read(_others(file, loop, function=function))
        if leaves(loop.body[:-1]) or kept or outside & (written | target):
            return None
        parameters = [*function.args.args, *function.args.kwonlyargs]
        seeds = [one.arg for one in parameters if only_seeds(function, one.arg)]
        once = not any(isinstance(one, (*LOOPS, ast.While)) for one in _around(file, loop))
        seed = seeds[0] if len(seeds) == 1 and once else ""
        return cls(file, loop, fresh(file, "make_batch"), seed)

    def edits(self, options: str, sink: str) -> tuple[Edit, ...]:
        """Return the edits."""
        file, loop, body = self.file, self.loop, self.loop.body
        indent, (begin, _) = file.indent(loop), file.span(loop)
        head, item, items, more = "", "_", "itertools.count()", top_of(file, ["import itertools"])
        if isinstance(loop, ast.For):
            item, items, more = file.source(loop.target), f"iter({file.source(loop.iter)})", ()
            if not isinstance(loop.target, ast.Name):
                target, item = item, fresh(file, "item")
                head = f"{file.newline}{file.indent(body[0])}{target} = {item}"
        elif imported_by(file).get("itertools") == "itertools":
            more = ()
        test = loop.iter if isinstance(loop, ast.For) else loop.test
        colon = file.text.index(":", file.span(test)[1])
        start, end = file.span(body[-1])[0], file.end_of_line(body[-1])
        seed = f", seed={self.seed}" if self.seed else ""
        runner = f"{RUNNER}({items}, transform={self.name}, {options}{seed}){sink}"
        return (
            *more,
            Edit(file.name, begin, colon + 1, f"def {self.name}({item}):{head}"),
            Edit(file.name, start, start + len(YIELD), "return"),
            Edit(file.name, end, end, f"{file.newline * 2}{indent}yield from {runner}"),
        )


def _loop_of(file: SourceFile, made: ast.AST) -> Loop | None:
    """Return the loop whose last statement yields what `made` says; None for another form."""
    statement = file.statement_of(made)
    loop = next(file.ancestors(statement))
    if not isinstance(loop, (ast.For, ast.While)) or loop.orelse:
        return None
    test = loop.test if isinstance(loop, ast.While) else ast.Constant(True)
    value = made.value if isinstance(made, ast.Yield) and isinstance(statement, ast.Expr) else None
    ends = value is not None and loop.body[-1] is statement
    known = isinstance(test, ast.Constant) and bool(test.value)
    movable = file.indent(loop) is not None and file.indent(loop.body[0]) is not None
    return loop if ends and known and movable else None


def _around(file: SourceFile, loop: Loop) -> Iterator[ast.AST]:
    """Yield what contains a loop within its function."""
    return itertools.takewhile(lambda one: not isinstance(one, SCOPES), file.ancestors(loop))


def _others(file: SourceFile, loop: Loop, *, function: Function) -> Iterator[ast.AST]:
    """Yield what a function holds beside the body of a loop."""
    yield loop.iter if isinstance(loop, ast.For) else loop.test
    inside: ast.AST = loop
    for one in (*_around(file, loop), function):
        yield from (child for child in ast.iter_child_nodes(one) if child is not inside)
        inside = one
