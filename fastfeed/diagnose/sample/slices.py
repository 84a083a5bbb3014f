"""The purpose of each statement of a training loop, from its source: input, step or the rest. Pure
functions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fastfeed.diagnose.sample.callee import dotted

STEP = re.compile(
    r"^(run|fit|backward|step|forward|minimize|update|optimize|compute|consume|learn|model|net|network|loss|criterion)$"
    r"|train|step$|_step_|backward|forward|^loss|loss$|loss_fn|optimi[sz]er|apply_grad|GradientTape|(^|_)grads?$|gradient|zero_grad|model$"
)
INPUT = re.compile(
    r"^(__next__|next|get|load|read|make|fetch|decode|sample|generate|produce|prepare|preprocess|augment|collate|batch|"
    r"dequeue|pull|take|recv|receive|choice|permutation|stack|concatenate|open|parse|crop|resize|draw)(_|\d|$)|"
    r"_(batch|data|input|inputs|batches)$|^get_|loader"
)
# and nothing that is made of a batch
TRAINS = re.compile(r"^(train|fit|learn|update)_(on_|one_|a_)?batch$")
USES = re.compile(
    r"^(predict|test|eval|evaluate|validate|score|infer|log|show|plot|save|send)_(on_|one_|a_)?(batch|data)$"
)
NOTES = re.compile(
    r"^(print|notes?|append|add_scalar|tick)(_|$)|log|record|report|journal|diary|track|metric|plot|write|save|callback"
)
WAITS = frozenset(("block_until_ready", "synchronize"))  # for work that a step has started
# a step without a telling name consists of these
PRODUCTS = frozenset(("matmul", "dot", "einsum", "tensordot"))
COUNTS = frozenset(("range", "count"))
WALKS = frozenset(("enumerate", "zip", "iter", "tqdm", "reversed", "list"))
Loop = ast.For | ast.AsyncFor | ast.While
Nested = (ast.If, ast.With, ast.AsyncWith, ast.Try, ast.For, ast.AsyncFor, ast.While)


class Statement(NamedTuple):
    """A statement of a loop's body, or the head of a compound one. `inner`: names that are called
    to make arguments."""

    first: int
    last: int
    reads: frozenset[str]
    writes: frozenset[str]
    calls: frozenset[str]
    inner: frozenset[str]
    head: bool = False  # of the loop itself, which asks an iterator


def loops_in(tree: ast.AST, first: int, *, last: int) -> list[Loop]:
    """Return the loops between two lines, the outer ones first."""
    found = [
        node for node in ast.walk(tree) if isinstance(node, Loop) and first <= node.lineno <= last
    ]
    return sorted(found, key=lambda node: (node.lineno, -(node.end_lineno or 0)))


def statements(loop: Loop) -> list[Statement]:
    """Return all statements, flat, the loop's own head first."""
    return [_head(loop), *_flat(loop.body)]


def _head(loop: Loop) -> Statement:
    if isinstance(loop, ast.While):
        return _statement(loop.test, first=loop.lineno, last=_end(loop.test))
    found = _statement(loop.iter, first=loop.lineno, last=_end(loop.iter))
    return found._replace(writes=_names(loop.target, ast.Store), head=not _only_counts(loop.iter))


def _only_counts(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = dotted(node.func).rpartition(".")[2]
    return name in COUNTS or (
        name in WALKS and bool(node.args) and all(map(_only_counts, node.args))
    )


def _flat(body: Sequence[ast.stmt]) -> Iterator[Statement]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if not isinstance(node, Nested):
            yield _statement(node, first=node.lineno, last=_end(node))
            continue
        heads: list[ast.AST] = [
            getattr(node, name) for name in ("test", "iter") if hasattr(node, name)
        ]
        heads += [item.context_expr for item in getattr(node, "items", ())]
        for head in heads:
            target = getattr(node, "target", None)
            found = _statement(head, first=node.lineno, last=_end(head))
            yield found._replace(writes=_names(target, ast.Store)) if target is not None else found
        for name in ("body", "orelse", "finalbody"):
            yield from _flat(getattr(node, name, ()))
        for handler in getattr(node, "handlers", ()):
            yield from _flat(handler.body)


def _statement(node: ast.AST, *, first: int, last: int) -> Statement:
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    inner = {
        _last(one)
        for call in calls
        for part in _arguments(call)
        for one in ast.walk(part)
        if isinstance(one, ast.Call)
    }
    names = frozenset(map(_last, calls)) - {""}
    if any(isinstance(one, ast.MatMult) for one in ast.walk(node)):
        names |= {"matmul"}
    reads, writes = _names(node, ast.Load), _names(node, ast.Store)
    if isinstance(node, ast.AugAssign):
        reads |= writes
    return Statement(first, last, reads, writes, names, frozenset(inner) - {""})


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _last(call: ast.Call) -> str:
    """Return the function's name; of a call of a call's result, as jax.grad(loss)(x), that of the
    inner call."""
    return (
        _last(call.func)
        if isinstance(call.func, ast.Call)
        else dotted(call.func).rpartition(".")[2]
    )


def _names(node: ast.AST, kind: type) -> frozenset[str]:
    """Return the names without those that exist only inside: `x` of `[f(x) for x in rows]`."""
    inner = [one.target for one in ast.walk(node) if isinstance(one, ast.comprehension)]
    within = {name.id for one in inner for name in ast.walk(one) if isinstance(name, ast.Name)}
    names = (
        one for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, kind)
    )
    return frozenset(name.id for name in names) - within


def _end(node: ast.AST) -> int:
    found: int | None = getattr(node, "end_lineno", None)
    return found or 0


def is_step(name: str) -> bool:
    """Return True if a function of this name is a training step, or part of one."""
    return TRAINS.search(name) is not None or (
        STEP.search(name) is not None and not INPUT.search(name)
    )


def counts(loop: Loop) -> bool:
    """Return True if a loop iterates only over numbers."""
    return isinstance(loop, ast.For) and _only_counts(loop.iter)


def repeats(loop: Loop) -> bool:
    """Return True if a loop only repeats something: nothing in it asks for input, reads its count
    or is called a step."""
    found = statements(loop)
    names = frozenset(name for one in found for name in one.calls)
    reads = frozenset(name for one in found[1:] for name in one.reads)
    asks = any(map(_is_input, found)) or any(map(is_step, names))
    return counts(loop) and not asks and not found[0].writes & reads


def kinds(loop: Loop) -> list[tuple[Statement, str]]:
    """Return each statement with "input", "step" or "host"; [] if there is no step.

    Steps are the calls with a step's name; without one, products of matrices; else `w = f(w, x)`;
    else what sleeps, like a simulated accelerator, and the last statement that uses what the input
    made. Input is what the step's values come from, backwards, and the head of a loop over anything
    but numbers.
    """
    found = statements(loop)
    steps = [
        one for one in found[1:] if any(map(is_step, one.calls - one.inner)) or _nested_step(one)
    ]
    steps = steps or [one for one in found[1:] if one.calls & PRODUCTS and not _is_input(one)]
    steps = steps or _carried(found) or _unnamed(found)
    if not steps:
        return []
    steps = _between(found, steps)
    made = _backward(found, steps)
    result = []
    for one in found:
        kind = (
            "step"
            if one in steps
            else "input"
            if one.head or one in made or _is_input(one)
            else "host"
        )
        result.append((one, kind))
    return result


def _carried(found: Sequence[Statement]) -> list[Statement]:
    """Return the statements that make their own result from this iteration's data and the last
    one's result: `w = f(w, x)`."""
    fresh = frozenset(name for one in found if not one.reads & one.writes for name in one.writes)
    carries = (
        one
        for one in found[1:]
        if one.calls and (one.reads & one.writes) - fresh and one.reads & fresh
    )
    return [one for one in carries if not _is_input(one)]


def _unnamed(found: Sequence[Statement]) -> list[Statement]:
    """Return the step of a loop without any telling name: by its position, after all that is made
    for it."""
    asleep = [one for one in found[1:] if "sleep" in one.calls]
    until = found.index(asleep[0]) if asleep else len(found)
    fed = _fed(found) or frozenset(name for one in found[1:until] for name in one.writes)
    users = [
        one
        for one in found[1:until]
        if one.calls and one.reads & fed and not _is_input(one) and not _notes(one)
    ]
    return [
        one
        for one in found[1:]
        if one in asleep or (one in users[-1:] and not (asleep and one.writes))
    ]


def _between(found: Sequence[Statement], steps: list[Statement]) -> list[Statement]:
    """Return the steps with the work between them on their results, such as `loss = out.mean()`
    before `loss.backward()`, and what makes the next one's start from it: `w = w - 0.1 * dw`.
    Statements that only take notes do not count."""
    written = frozenset(name for one in steps for name in one.writes)
    read = frozenset(name for one in steps for name in one.reads)
    between = found[found.index(steps[0]) : found.index(steps[-1])]
    uses = [one for one in found if one.reads & written and not _notes(one)]
    follow = [one for one in uses if one in between or one.writes & read or one.calls & WAITS]
    return steps + [
        one for one in follow if one not in steps and not one.head and not _is_input(one)
    ]


def _nested_step(one: Statement) -> bool:
    """Return True for a step inside a call: `print(train(batch))` and `losses.append(step(x))` are
    steps, too."""
    return any(is_step(name) for name in one.inner)


def _notes(one: Statement) -> bool:
    """Return True if it only takes notes."""
    return not one.writes and any(map(NOTES.search, one.calls - one.inner))


def _is_input(one: Statement) -> bool:
    names = [
        name for name in one.calls - one.inner if not (TRAINS.search(name) or USES.search(name))
    ]
    return any(map(INPUT.search, names)) and bool(one.writes)


def _fed(found: Sequence[Statement]) -> frozenset[str]:
    """Return the names that hold data: what the loop's head and input calls write, and what is made
    of that."""
    names = frozenset(name for one in found if one.head or _is_input(one) for name in one.writes)
    for _ in found:
        names |= frozenset(name for one in found if one.reads & names for name in one.writes)
    return names


def _backward(found: Sequence[Statement], steps: Sequence[Statement]) -> list[Statement]:
    """Return the statements that make what the steps use, without the steps themselves and plain
    counting."""
    wanted = _wanted(found, steps)
    made: list[Statement] = []
    for _ in found:
        data = frozenset(name for one in made for name in one.writes)
        more = [
            one for one in found if one not in made and one not in steps and one.writes & wanted
        ]
        more = [one for one in more if one.calls or one.reads - one.writes or one.writes & data]
        made += more
        wanted |= frozenset(name for one in more for name in one.reads)
    return [one for one in made if not (one is found[0] and not one.head)]


def _wanted(found: Sequence[Statement], steps: Sequence[Statement]) -> frozenset[str]:
    """Return the names that steps use. A step that only sleeps stands for one that uses all that is
    made before it; if something there is called input, all but what notes are taken of."""
    read = frozenset(name for one in steps for name in one.reads)
    before = found[1 : found.index(steps[0])]
    written = frozenset(name for one in before for name in one.writes)
    if read & written or found[0].head:
        return read
    noted = frozenset(name for one in found if _notes(one) for name in one.reads)
    return read | (written - noted if any(map(_is_input, before)) else written)
