"""A FeedRunner within a generator of the script: the body of its loop becomes a function that
several producers run."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from fastfeed.diagnose.patches.drawn_seed import drawn_seed
from fastfeed.diagnose.patches.generator_call import HAVE_ONE, Function, generators_of
from fastfeed.diagnose.patches.names import (
    SCOPES,
    advanced,
    bound,
    changed,
    kept_by,
    leaves,
    only_seeds,
    own,
    read,
    read_first,
)
from fastfeed.diagnose.patches.proposal import (
    IMPORTS,
    RUNNER,
    PatchCase,
    Proposal,
    fresh,
    imported_by,
    producers_ahead,
    top_of,
)
from fastfeed.diagnose.patches.serial_loop import (
    Loop,
    shown_by_loop,
)
from fastfeed.diagnose.patches.source_file import Edit, SourceFile
from fastfeed.diagnose.proof import OTHER_DRAWS, SAME

MAX_NESTED = 4  # generators of one stack
YIELD, RETURN = "yield", "return"
MAKER, ITEMS, ITEM = "make_batch", "batch_items", "item"  # names in what is written


class GeneratorBody:
    """Producers run the body of a generator's loop, which yields at its end.

    `for item in items: ...; yield batch` becomes `def make_batch(item): ...; return batch`, and
    `yield from` a FeedRunner over the items. Loops around it, as one over epochs, become a
    generator of the items. The body may keep nothing from one item to the next: the text shows it,
    or else a run with another number of producers.
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
                    (*body.edits(case, f"{kind}={n}", sink=sink), *case.runner_import(file))
                    for n in (count, 1)
                )
                title = f"{RUNNER}(..., transform={fresh(file, MAKER)}, {kind}={count}){sink}"
                one = Proposal(title, edits, advice, shows=shows, makes=True)
                allows = (SAME, OTHER_DRAWS)
                threads = kind == "threads"
                forms.append(replace(one, allows=allows, alone=alone, shares=threads))
            yield replace(forms[0], instead=tuple(forms[1:]))


class _Body(NamedTuple):
    """Loop of a generator that yields at the end of its body, and nowhere else."""

    file: SourceFile
    loop: Loop
    outer: Loop  # itself, or the outermost loop around it, which can be a generator of items
    taken: list[str]  # names that the body reads and `outer` binds
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
        if leaves(loop.body[:-1]) or kept_by(loop, modules=file.modules):
            return None
        if read(_others(file, loop, within=function)) & (written | target):
            return None
        around = [one for one in _around(file, loop) if isinstance(one, (ast.For, ast.While))]
        outer = around[-1] if around else loop
        after = read(_others(file, outer, within=function)) & set(_bound_in(outer, loop))
        if after or not _can_be_apart(file, outer, loop=loop):
            outer = loop
        parameters = [*function.args.args, *function.args.kwonlyargs]
        seeds = [one.arg for one in parameters if only_seeds(function, one.arg)]
        seed = seeds[0] if len(seeds) == 1 and outer in (around or [loop]) else ""
        taken = [name for name in dict.fromkeys(_bound_in(outer, loop)) if name in needed]
        return cls(file, loop, outer, taken, seed)

    def edits(self, case: PatchCase, options: str, *, sink: str) -> tuple[Edit, ...]:
        """Return the edits."""
        items, edits = self._in_place() if self.outer is self.loop else self._apart()
        seed = f", seed={self.seed}" if self.seed else ""
        seed = seed or drawn_seed(case, self.file, body=self.loop.body, options=options)
        made = f"{items}, transform={fresh(self.file, MAKER)}, {options}{seed}"
        end, indent = self.file.end_of_line(self.outer), self.file.indent(self.outer)
        text = f"{self.file.newline * 2}{indent}yield from {RUNNER}({made}){sink}"
        return (*edits, Edit(self.file.name, end, end, text))

    def _in_place(self) -> tuple[str, tuple[Edit, ...]]:
        """Return the items, and the edits that make a function of the loop."""
        file, loop, maker = self.file, self.loop, fresh(self.file, MAKER)
        begin, end = file.span(loop)[0], file.span(loop.body[-1])[0]
        returned = Edit(file.name, end, end + len(YIELD), RETURN)
        if isinstance(loop, ast.While):
            colon = file.text.index(":", file.span(loop.test)[1])
            known = imported_by(file).get("itertools") == "itertools"
            more = () if known else top_of(file, ["import itertools"])
            head = Edit(file.name, begin, colon + 1, f"def {maker}(_):")
            return "itertools.count()", (*more, head, returned)
        target, colon = file.source(loop.target), file.text.index(":", file.span(loop.iter)[1])
        text = f"def {maker}({target}):"
        if not isinstance(loop.target, ast.Name):
            item, inside = fresh(file, ITEM), file.indent(loop.body[0])
            text = f"def {maker}({item}):{file.newline}{inside}{target} = {item}"
        head = Edit(file.name, begin, colon + 1, text)
        return f"iter({file.source(loop.iter)})", (head, returned)

    def _apart(self) -> tuple[str, tuple[Edit, ...]]:
        """Return the items, and the edit that makes a function of the body, and a generator of the
        loops around it."""
        file, body, names = self.file, self.loop.body, ", ".join(self.taken)
        maker, maker_items = fresh(file, MAKER), fresh(file, ITEMS)
        item = (names if len(self.taken) == 1 else fresh(file, ITEM)) if names else "_"
        (begin, _), inside = file.span(self.outer), file.indent(body[0]) or ""
        start, end = file.span(body[0])[0], file.end_of_line(body[-1])
        at = file.span(body[-1])[0]
        text = file.text[start:at] + RETURN + file.text[at + len(YIELD) : end]
        lines = [line.removeprefix(inside) for line in text.split(file.newline)]
        before, after = file.text[begin:start], file.text[end : file.end_of_line(self.outer)]
        unpacked = [f"{names} = {item}"] * (len(self.taken) > 1)
        loops = f"{before}yield {names or 'None'}{after}".split(file.newline)
        outside = file.indent(self.outer) or ""
        written = [
            f"def {maker}({item}):",
            *(f"    {line}" for line in (*unpacked, *lines)),
            "",
            f"def {maker_items}():",
            *(f"    {line.removeprefix(outside)}" for line in loops),
        ]
        joined = file.newline.join(f"{outside}{line}" if line.strip() else "" for line in written)
        edit = Edit(file.name, begin, file.end_of_line(self.outer), joined[len(outside) :])
        return f"{maker_items}()", (edit,)


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


def _can_be_apart(file: SourceFile, outer: Loop, *, loop: Loop) -> bool:
    """Return True if a loop can be a generator of the items of one within it: it changes nothing
    that is there before it, ends nothing else, and its text can be moved. It assigns all names that
    it binds."""
    between = list(_between(outer, loop))
    blocks = (getattr(one, "body", None) for one in between)
    binds = (one for block in blocks if isinstance(block, list) for one in block)
    made = set(_bound_in(outer, loop))
    strings = (n for n in ast.walk(outer) if isinstance(n, (ast.Constant, ast.JoinedStr)))
    return (
        not (read_first([outer]) & made)
        and not _changes_items(between, loop, made=made)
        and not any(isinstance(one, ast.Return) for one in between)
        and not any(isinstance(one, (*SCOPES, *IMPORTS)) for one in binds)
        and all(node.lineno == node.end_lineno for node in strings)
        and file.indent(outer) is not None
        and "\t" not in file.source(outer)
    )


def _changes_items(between: list[ast.AST], loop: Loop, *, made: set[str]) -> bool:
    """Return True if what is between two loops changes in place what the body of the inner one
    reads: items that are made ahead would change, too. What the statement before has just made is
    in no item yet."""
    needed, names = read_first(loop.body), ("body", "orelse", "finalbody")
    for block in (
        getattr(node, name, []) for node in between if node is not loop for name in names
    ):
        known: set[str] = set()
        for one in block if isinstance(block, list) else []:
            found = set() if hasattr(one, "body") else _changes([one], made=made)
            found |= set(bound([one])) if isinstance(one, ast.AugAssign) else set()
            if found & needed - known:
                return True
            known = set(bound([one]))
    return False


def _changes(nodes: list[ast.stmt], *, made: set[str]) -> set[str]:
    found = changed(nodes, made=made) | advanced(nodes)
    return {name.partition(".")[0] for name in found}


def _between(outer: Loop, loop: Loop) -> Iterator[ast.AST]:
    """Yield what a loop holds beside the body of one within it."""
    body = {id(node) for one in loop.body for node in ast.walk(one)}
    yield from (node for node in own(outer) if id(node) not in body)


def _bound_in(outer: Loop, loop: Loop) -> list[str]:
    """Return the names that a loop binds beside the body of one within it."""
    names = (one for one in _between(outer, loop) if isinstance(one, ast.Name))
    return [one.id for one in names if isinstance(one.ctx, (ast.Store, ast.Del))]


def _around(file: SourceFile, loop: Loop) -> Iterator[ast.AST]:
    """Yield what contains a loop within its function."""
    return itertools.takewhile(lambda one: not isinstance(one, SCOPES), file.ancestors(loop))


def _others(file: SourceFile, loop: Loop, *, within: Function) -> Iterator[ast.AST]:
    """Yield what a function holds beside the body of a loop."""
    yield loop.iter if isinstance(loop, ast.For) else loop.test
    inside: ast.AST = loop
    for one in (*_around(file, loop), within):
        yield from (child for child in ast.iter_child_nodes(one) if child is not inside)
        inside = one
