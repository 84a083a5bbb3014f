"""float32 for a step that gets float64: cast once before its loop, or where a generator yields."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from fastfeed.diagnose.patches.generator_call import generators_of
from fastfeed.diagnose.patches.names import SCOPES, bound, changed, own, path_of
from fastfeed.diagnose.patches.proposal import PatchCase, Proposal, fresh, imported_by
from fastfeed.diagnose.patches.source_file import Edit, SourceFile, called

BEFORE_DTYPE, AFTER_DTYPE = "float64", "float32"


class FedData:
    """Data that a loop feeds to a session by index, cast before it; what else reads them stays."""

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        advice, at, seen = case.advice("dtypes"), case.loop_line(), case.diagnosis.evidence.loop
        if at is None or seen is None or advice is None or advice.value != AFTER_DTYPE:
            return
        file, line = at
        calls, numpy = file.calls_at(line, "run"), imported_by(file).get("numpy")
        values = _fed(calls[0]) if calls else []
        loop = _loop_around(file, calls[0]) if calls else None
        if loop is None or not numpy or len(values) != len(seen.leaves):
            return
        touched, edits = _touched(file, loop), list[Edit | None]()
        for leaf, value in zip(seen.leaves, values, strict=True):
            data = value.value if isinstance(value, ast.Subscript) else None
            if leaf.dtype == BEFORE_DTYPE and isinstance(data, ast.Name) and data.id not in touched:
                made = fresh(file, f"{data.id}_{AFTER_DTYPE}")
                cast = f"{made} = {numpy}.asarray({data.id}, {numpy}.{AFTER_DTYPE})"
                edits += [file.inserted(loop, [cast]), file.replaced(data, made)]
        known = [one for one in edits if one is not None]
        if known and len(known) == len(edits):
            yield Proposal(f"feed data as {AFTER_DTYPE}", tuple(known), advice)


class YieldedData:
    """Arrays of float32 from a generator of the script."""

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        advice, seen = case.advice("dtypes"), case.diagnosis.evidence.loop
        if seen is None or advice is None or advice.value != AFTER_DTYPE:
            return
        wide = {leaf.path for leaf in seen.leaves if leaf.dtype == BEFORE_DTYPE}
        for file, function in generators_of(case, most=1)[:1]:
            nodes = [node for one in function.body for node in own(one)]
            made = [one.value for one in nodes if isinstance(one, ast.Yield) and one.value]
            casts = (_cast(file, one, path="batch", wide=wide) for one in made)
            edits = tuple(itertools.chain.from_iterable(casts))
            if edits:
                yield Proposal(f"{function.name} yields {AFTER_DTYPE}", edits, advice, casts=True)


def _cast(file: SourceFile, made: ast.expr, *, path: str, wide: set[str]) -> Iterator[Edit]:
    """Yield the edits that cast the parts of a yielded value at these paths."""
    numpy = imported_by(file).get("numpy")
    if isinstance(made, ast.Tuple):
        for number, one in enumerate(made.elts):
            yield from _cast(file, one, path=f"{path}[{number}]", wide=wide)
    elif isinstance(made, ast.Dict):
        for key, one in zip(made.keys, made.values, strict=True):
            if isinstance(key, ast.Constant):
                yield from _cast(file, one, path=f"{path}[{key.value!r}]", wide=wide)
    elif path in wide and numpy:
        yield file.replaced(made, f"{numpy}.asarray({file.source(made)}, {numpy}.{AFTER_DTYPE})")


def _fed(call: ast.Call) -> list[ast.expr]:
    """Return what a run is fed, but for scalars."""
    given = [*call.args[1:2], *(one.value for one in call.keywords if one.arg == "feed_dict")]
    values = (value for one in given if isinstance(one, ast.Dict) for value in one.values)
    return [value for value in values if not isinstance(value, ast.Constant)]


def _touched(file: SourceFile, loop: ast.For | ast.While) -> set[str]:
    """Return the names that a loop binds or changes, or hands to functions of the file, and those
    that any of these changes: a cast from before the loop would go stale."""
    functions = [one for one in ast.walk(file.tree) if isinstance(one, ast.FunctionDef)]
    names = {one.name for one in functions}
    calls = (one for one in ast.walk(loop) if isinstance(one, ast.Call) and called(one) in names)
    handed = {path_of(one) for call in calls for one in call.args}
    inside = changed(statement for one in functions for statement in one.body)
    return {*bound([loop]), *changed([loop]), *handed, *inside}


def _loop_around(file: SourceFile, call: ast.Call) -> ast.For | ast.While | None:
    """Return the innermost loop around a call in its function: what an epoch shuffles is cast
    anew."""
    around = itertools.takewhile(lambda one: not isinstance(one, SCOPES), file.ancestors(call))
    return next((one for one in around if isinstance(one, (ast.For, ast.While))), None)
