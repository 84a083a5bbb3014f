"""get_inputs() in place of the placeholders that a loop feeds to a session."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fastfeed.diagnose.patches.names import (
    COMPREHENSIONS,
    SCOPES,
    advanced,
    bound,
    called_on,
    changed_outside,
    leaves,
    path_of,
    read,
    read_first,
    stored_outside,
)
from fastfeed.diagnose.patches.proposal import (
    ALIKE,
    RUNNER,
    PatchCase,
    Proposal,
    fresh,
    producers_ahead,
)
from fastfeed.diagnose.patches.serial_loop import MadeInput, made_in_loop
from fastfeed.diagnose.patches.session_graph import (
    Pair,
    argument,
    array_of,
    fed_by,
    feed_dict,
    followed,
    is_changed,
    names_in,
    own_names,
    owner_of,
    package_of,
    reads_of,
    repeats,
    scope_of,
    shown_as_fed,
    tuple_of,
)
from fastfeed.diagnose.patches.source_file import Edit, SourceFile, called

PERHAPS = (ast.BoolOp, ast.IfExp, *SCOPES, *COMPREHENSIONS)  # which may not run what they hold


class FedLoop:
    """Tensors of a runner in place of placeholders, where a loop makes what it feeds to them.

    What the loop makes moves into a generator before the placeholders. In TensorFlow 1 any tensor
    may be fed, so that other runs, such as an evaluation, feed these tensors as they fed the
    placeholders.
    """

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        seen, found, at = case.diagnosis.evidence.loop, made_in_loop(case), case.loop_line()
        made = found[2] if found is not None else None
        if seen is None or seen.kind != "session" or made is None or at is None:
            return
        fed = _Fed.of(made, line=at[1])
        if fed is None:
            return
        shown = shown_as_fed(fed.file, fed.run, keys=(key for key, _ in fed.pairs))
        for kind, count, advice in producers_ahead(case, most=1):
            edits = fed.edits(f"{kind}={count}")
            if edits:
                title = f"get_inputs() of {RUNNER}(..., {kind}={count}) in place of the feed_dict"
                edits = (*case.runner_import(fed.file), *edits)
                yield Proposal(title, edits, advice, shows_before=shown, makes=True, allows=ALIKE)


class _Fed(NamedTuple):
    """A run of a session in a loop, and what of its feed_dict the loop makes."""

    file: SourceFile
    loop: ast.stmt  # the outermost one in which the session stays the same
    made: MadeInput
    run: ast.Call
    pairs: list[Pair]
    stores: list[ast.Assign]  # of the placeholders

    @classmethod
    def of(cls, made: MadeInput, *, line: int) -> _Fed | None:
        """Return the run at a line; None without one, or if its input cannot move before the
        placeholders."""
        file, loops = made.file, made.loops
        calls = [one for one in file.calls_at(line, "run") if one.args and owner_of(one)]
        if made.apart or made.carried or not calls:
            return None
        run, scope = calls[0], scope_of(file, loops[0])
        pairs = [one for one in fed_by(run) if read([one[1]]) & set(made.taken)]
        stores = [_placeholder(file, key, scope=scope) for key, _ in pairs]
        known = [one for one in stores if one is not None]
        if not known or len(known) != len(stores) or len(set(known)) != len(known):
            return None
        # The end of an iterator would come from a producer.
        if advanced(made.statements) or not _always_runs(made, run):
            return None
        first, values = min(known, key=lambda one: one.lineno), [value for _, value in pairs]
        around = [one for one in loops if scope_of(file, one) is scope]
        if repeats(file, first) or owner_of(run) in bound(around):
            return None
        if _is_shared(made, values, first=first) or not _only_fed(made, values):
            return None
        return cls(file, around[-1], made, run, pairs, known)

    def edits(self, options: str) -> tuple[Edit, ...]:
        """Return the edits, none if the text does not allow them."""
        file, first = self.file, min(self.stores, key=lambda one: one.lineno)
        lines = file.lines_of(self.made.statements)
        values = [
            array_of(
                file, value, dtype=_given(store, "dtype", position=0), package=_package(file, store)
            )
            for (_, value), store in zip(self.pairs, self.stores, strict=True)
        ]
        if lines is None or "" in values:
            return ()
        makes, runner = fresh(file, "make_batch"), fresh(file, "feed_runner")
        inputs = fresh(file, "made_inputs")
        head = [
            *(f"def {makes}():", "    while True:", *(f"        {one}" for one in lines)),
            *(f"        yield {tuple_of(values)}", ""),
            f"{runner} = {RUNNER}({makes}, {options}, shuffle=False)",
            f"{inputs} = {runner}.get_inputs()",
        ]
        found = [
            file.inserted(first, head),
            file.inserted(self.loop, [f"{runner}.start({owner_of(self.run)})"]),
            *(file.left_out(one) for one in self.made.statements),
            self._without_pairs(),
        ]
        for number, store in enumerate(self.stores):
            shape, name = _given(store, "shape", position=1), _given(store, "name", position=2)
            if shape is None or not _is_fixed(shape):
                return ()
            called_as = f", name={file.source(name)}" if name is not None else ""
            given = f"{inputs}[{number}], {file.source(shape)}{called_as}"
            made = f"{_package(file, store)}.placeholder_with_default({given})"
            found.append(file.replaced(store.value, made))
        return tuple(found) if None not in found else ()  # type: ignore[arg-type]

    def _without_pairs(self) -> Edit:
        """Return the edit that takes what the runner gives out of the feed_dict."""
        source, keys = self.file.source, {key for key, _ in self.pairs}
        left = [(key, value) for key, value in fed_by(self.run) if key not in keys]
        given = feed_dict(self.run)
        assert given is not None
        text = ", ".join(f"{source(key)}: {source(value)}" for key, value in left)
        return self.file.replaced(given, f"{{{text}}}")


def _placeholder(file: SourceFile, key: ast.expr, *, scope: ast.AST) -> ast.Assign | None:
    """Return the statement of a function or file that makes a placeholder and names it; None for
    another tensor, and for a name that is bound once more."""
    if not isinstance(key, ast.Name):
        return None
    names = names_in(file, scope, name=key.id)
    stores = [one for one in names if not isinstance(one.ctx, ast.Load)]
    made = file.statement_of(stores[0]) if len(stores) == 1 else None
    if not isinstance(made, ast.Assign) or made.targets != stores:
        return None
    call = made.value
    return made if isinstance(call, ast.Call) and called(call) == "placeholder" else None


def _given(store: ast.Assign, name: str, *, position: int) -> ast.expr | None:
    assert isinstance(store.value, ast.Call)
    return argument(store.value, name, position=position)


def _package(file: SourceFile, store: ast.Assign) -> str:
    assert isinstance(store.value, ast.Call)
    return package_of(file, store.value)


def _is_fixed(shape: ast.expr) -> bool:
    """Return True if a shape says that records have one shape, as those of a runner have."""
    if not isinstance(shape, (ast.List, ast.Tuple)):
        return False
    return not any(isinstance(one, ast.Constant) and one.value is None for one in shape.elts[1:])


def _always_runs(made: MadeInput, run: ast.Call) -> bool:
    """Return True if each iteration that makes a batch runs the step, too."""
    file, body = made.file, made.loops[0].body
    step = file.statement_of(run)
    first = min(body.index(one) for one in made.statements)
    if any(isinstance(one, PERHAPS) and step in file.ancestors(one) for one in file.ancestors(run)):
        return False
    return step in body and not leaves(body[first : body.index(step)])


def _is_shared(made: MadeInput, values: list[ast.expr], *, first: ast.stmt) -> bool:
    """Return True if others bind or change what the input is made of, after a statement, or ask the
    objects and functions that make it for more."""
    file, moved = made.file, [*made.statements, *values]
    functions = followed(file, moved)
    names = {name.partition(".")[0] for name in read_first(made.statements) | read(values)}
    needed = names - set(bound(made.statements)) | {n for one in functions for n in reads_of(one)}
    needed -= file.modules
    owners = called_on(moved) - file.modules
    if is_changed(
        file,
        needed,
        scope=scope_of(file, first),
        since=first,
        besides=made.statements,
        owners=owners,
    ):
        return True
    others = (one for one in ast.walk(file.tree) if isinstance(one, ast.FunctionDef))
    for one in others:
        changed = stored_outside(one) | changed_outside(one, modules=file.modules)
        if changed & needed and one not in functions:
            return True
    inside = {id(node) for one in (*moved, *functions) for node in ast.walk(one)}
    given = _arguments(node for one in moved for node in ast.walk(one)) - file.modules
    return any(
        _keeps_state(file, function)
        or _arguments([next(file.ancestors(node))]) & given - own_names(scope_of(file, node))
        for function in functions
        for node in file.loads(function.name)
        if id(node) not in inside
        if node.lineno > first.lineno or scope_of(file, node) is not scope_of(file, first)
    )


def _arguments(nodes: Iterable[ast.AST]) -> set[str]:
    calls = (one for one in nodes if isinstance(one, ast.Call))
    return {path_of(part) for one in calls for part in one.args} - {""}


def _keeps_state(file: SourceFile, function: ast.FunctionDef) -> bool:
    """Return True if a function changes something that its next call finds."""
    outside = stored_outside(function) | changed_outside(function, modules=file.modules)
    arguments = {one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)}
    return bool(outside - arguments or advanced(function.body) - set(bound(function.body)))


def _only_fed(made: MadeInput, values: list[ast.expr]) -> bool:
    """Return True if nothing but the values of the feed_dict reads what the loop makes."""
    inside = {id(node) for one in (*made.statements, *values) for node in ast.walk(one)}
    file, scope = made.file, scope_of(made.file, made.loops[0])
    names = (one for name in made.taken for one in names_in(file, scope, name=name))
    return all(id(one) in inside for one in names if isinstance(one.ctx, ast.Load))
