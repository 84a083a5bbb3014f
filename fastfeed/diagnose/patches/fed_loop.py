"""get_inputs() in place of the placeholders that a loop feeds to a session."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fastfeed.diagnose.patches.names import SCOPES, bound, changed, path_of, read, read_first
from fastfeed.diagnose.patches.proposal import (
    ALIKE,
    RUNNER,
    PatchCase,
    Proposal,
    fresh,
    producers_ahead,
)
from fastfeed.diagnose.patches.serial_loop import Loop, MadeInput, made_in_loop
from fastfeed.diagnose.patches.source_file import Edit, SourceFile, called

Pair = tuple[ast.expr, ast.expr]  # of a feed_dict
NUMPY_NAMES = ("float32", "float16", "int32", "int64", "uint8")  # that mean the same to TensorFlow


class FedLoop:
    """Tensors of a runner in place of placeholders, where a loop makes what it feeds to them.

    What the loop makes moves into a generator before the placeholders. In TensorFlow 1 any tensor
    may be fed, so that other runs, such as an evaluation, feed these tensors as they fed the
    placeholders.
    """

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        seen, found, at = case.diagnosis.evidence.loop, made_in_loop(case), case.loop_line()
        if seen is None or seen.kind != "session" or found is None or at is None:
            return
        fed = _Fed.of(*found, line=at[1])
        if fed is None:
            return
        for kind, count, advice in producers_ahead(case, most=1):
            edits = fed.edits(f"{kind}={count}")
            if edits:
                title = f"get_inputs() of {RUNNER}(..., {kind}={count}) in place of the feed_dict"
                edits = (*case.runner_import(fed.file), *edits)
                yield Proposal(title, edits, advice, makes=True, allows=ALIKE)


class _Fed(NamedTuple):
    """A run of a session in a loop, and what of its feed_dict the loop makes."""

    file: SourceFile
    loop: ast.stmt  # the outermost one in which the session stays the same
    made: MadeInput
    run: ast.Call
    pairs: list[Pair]
    stores: list[ast.Assign]  # of the placeholders

    @classmethod
    def of(
        cls,
        file: SourceFile,
        loops: list[Loop],
        made: MadeInput | None,
        *,
        line: int,
    ) -> _Fed | None:
        """Return the run at a line; None without one, or if its input cannot move before the
        placeholders."""
        calls = [one for one in file.calls_at(line, "run") if one.args and owner_of(one)]
        if made is None or made.apart or made.carried or not calls:
            return None
        run = calls[0]
        fed = fed_by(run)
        pairs = [
            (key, value)
            for key, value in (fed if fed is not None else ())
            if read([value]) & set(made.taken)
        ]
        stores = [_placeholder(file, key) for key, _ in pairs]
        known = [one for one in stores if one is not None]
        if not known or len(known) != len(stores) or len(set(known)) != len(known):
            return None
        inside = [one for one in loops if _scope(file, one) is _scope(file, loops[0])]
        first, values = min(known, key=lambda one: one.lineno), [value for _, value in pairs]
        if not (
            _only_fed(file, made, values)
            and all(_scope(file, one) is _scope(file, loops[0]) for one in known)
            and not _changed_after(file, first, made=made, values=values)
            and owner_of(run) not in bound(inside)
        ):
            return None
        return cls(file, inside[-1], made, run, pairs, known)

    def edits(self, options: str) -> tuple[Edit, ...]:
        """Return the edits, none if the text does not allow them."""
        file, first = self.file, min(self.stores, key=lambda one: one.lineno)
        lines = file.lines_of(self.made.statements)
        dtypes = [_dtype(file, one) for one in self.stores]
        if lines is None or "" in dtypes:
            return ()
        makes, runner = fresh(file, "make_batch"), fresh(file, "feed_runner")
        inputs = fresh(file, "made_inputs")
        given = f"shuffle=False, dtypes={tuple_of(dtypes)}"
        head = [
            *(f"def {makes}():", "    while True:", *(f"        {one}" for one in lines)),
            f"        yield {tuple_of(file.source(value) for _, value in self.pairs)}",
            "",
            f"{runner} = {RUNNER}({makes}, {options}, {given})",
            f"{inputs} = {runner}.get_inputs()",
        ]
        found = [
            file.inserted(first, head),
            file.inserted(self.loop, [f"{runner}.start({owner_of(self.run)})"]),
            *(file.left_out(one) for one in self.made.statements),
            self._without_pairs(),
        ]
        for number, store in enumerate(self.stores):
            text = f"{inputs}[{number}]"
            assert isinstance(store.value, ast.Call)
            name = next((one.value for one in store.value.keywords if one.arg == "name"), None)
            if name is not None:  # others may look for it
                text = f"{package_of(file, store.value)}.identity({text}, name={file.source(name)})"
            found.append(file.replaced(store.value, text))
        return tuple(found) if None not in found else ()  # type: ignore[arg-type]

    def _without_pairs(self) -> Edit:
        """Return the edit that takes what the runner gives out of the feed_dict."""
        keys = {key for key, _ in self.pairs}
        fed = fed_by(self.run) or []
        left = [
            f"{self.file.source(key)}: {self.file.source(value)}"
            for key, value in fed
            if key not in keys
        ]
        given = _feed_dict(self.run)
        assert given is not None
        return self.file.replaced(given, f"{{{', '.join(left)}}}")


def tuple_of(parts: Iterable[str]) -> str:
    """Return the text of a tuple."""
    given = list(parts)
    return f"({', '.join(given)}{',' * (len(given) == 1)})"


def owner_of(run: ast.Call) -> str:
    """Return the name of the session of a run, "" if it has none."""
    return path_of(run.func.value) if isinstance(run.func, ast.Attribute) else ""


def _feed_dict(run: ast.Call) -> ast.Dict | None:
    """Return the feed_dict of a run, if it is written there."""
    given = argument(run, "feed_dict", position=1)
    return given if isinstance(given, ast.Dict) else None


def fed_by(run: ast.Call) -> list[Pair] | None:
    """Return the keys and values of the feed_dict of a run; None if they are not known."""
    given = _feed_dict(run)
    if given is None or None in given.keys:
        return None
    return [(key, value) for key, value in zip(given.keys, given.values, strict=True) if key]


def _placeholder(file: SourceFile, key: ast.expr) -> ast.Assign | None:
    """Return the statement that makes a placeholder and names it; None for another tensor, and for
    a name that others bind, too."""
    name = path_of(key)
    if not isinstance(key, ast.Name):
        return None
    stores = [
        one
        for one in ast.walk(file.tree)
        if isinstance(one, ast.Name) and one.id == name and not isinstance(one.ctx, ast.Load)
    ]
    made = file.statement_of(stores[0]) if len(stores) == 1 else None
    if not isinstance(made, ast.Assign) or made.targets != stores:
        return None
    call = made.value
    return made if isinstance(call, ast.Call) and called(call) == "placeholder" else None


def package_of(file: SourceFile, placeholder: ast.Call) -> str:
    """Return the package of a placeholder as the script calls it, "" if it has none."""
    function = placeholder.func
    return file.source(function.value) if isinstance(function, ast.Attribute) else ""


def _dtype(file: SourceFile, store: ast.Assign) -> str:
    """Return the text of the dtype of a placeholder; "" if it is not known."""
    call = store.value
    assert isinstance(call, ast.Call)
    given = argument(call, "dtype", position=0)
    return dtype_text(file, given, package=package_of(file, call)) if given is not None else ""


def dtype_text(file: SourceFile, given: ast.expr, *, package: str) -> str:
    """Return the text of a dtype that TensorFlow gets, for numpy; "" if it is not known."""
    text = file.source(given)
    if not isinstance(given, ast.Constant) or given.value in NUMPY_NAMES:
        return text
    return f"{package}.as_dtype({text})" if package else ""


def argument(call: ast.Call, name: str, *, position: int) -> ast.expr | None:
    """Return an argument of a call, given by name or by position."""
    given = next((one.value for one in call.keywords if one.arg == name), None)
    return given or (call.args[position] if position < len(call.args) else None)


def _scope(file: SourceFile, node: ast.AST) -> ast.AST:
    return next((one for one in file.ancestors(node) if isinstance(one, SCOPES)), file.tree)


def _only_fed(file: SourceFile, made: MadeInput, values: list[ast.expr]) -> bool:
    """Return True if nothing but the values of the feed_dict reads what the loop makes."""
    inside = {id(node) for one in (*made.statements, *values) for node in ast.walk(one)}
    scope = _scope(file, made.loops[0])
    return not any(
        isinstance(node, ast.Name)
        and node.id in made.taken
        and isinstance(node.ctx, ast.Load)
        and id(node) not in inside
        for node in ast.walk(scope)
    )


def _changed_after(
    file: SourceFile, first: ast.stmt, *, made: MadeInput, values: list[ast.expr]
) -> bool:
    """Return True if a statement or one behind it, in the same function, binds or changes what the
    input is made of."""
    names = read_first(made.statements) | read(values)
    needed = {name.partition(".")[0] for name in names} - set(bound(made.statements))
    scope = _scope(file, first)
    for node in ast.walk(scope):
        if not isinstance(node, ast.stmt) or node.lineno <= first.lineno:
            continue
        if node in made.statements or _scope(file, node) is not scope:
            continue
        names = {getattr(node, "name", "")} if isinstance(node, SCOPES) else set()
        if not hasattr(node, "body"):  # whose statements come one by one
            names = {*bound([node]), *changed([node])}
        if ({name.partition(".")[0] for name in names} - file.modules) & needed:
            return True
    return False
