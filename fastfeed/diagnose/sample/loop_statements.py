"""Purpose of each statement of a training loop, from its source; pure functions.

The steps are known by their names, or by their place behind everything that is made for them. The
flow of the data tells the rest.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from fastfeed.diagnose.sample.copying import dotted

# Kinds of statements: the step's input comes from INPUT; HOST is the rest of the loop.
INPUT_KIND, STEP, HOST = "input", "step", "host"
STEP_NAME = re.compile(
    r"^(run|fit|step|minimize|update|optimize|learn|model|net|network|criterion)$|train|step$|"
    r"_step_|backward|forward|loss|optimi[sz]er|apply_grad|GradientTape|(^|_)grads?$|gradient|model$"
)
EVALUATES = re.compile(r"^(eval|evaluate|estimate|validate|validation|test)(_|$)")
SYNC_CALLS = frozenset(("block_until_ready", "synchronize"))  # wait for what a step has enqueued
SIMULATED = "sleep"  # a simulated accelerator
COUNTING_CALLS = frozenset(("range", "count"))
WRAPPING_CALLS = frozenset(("enumerate", "zip", "iter", "tqdm", "reversed", "list"))
MIN_STEP_VALUES = 4  # of the step of an environment, in the protocol of Gym
MIN_SPENT = 0.05  # share of the time from which a statement may be a step without a name
LoopNode = ast.For | ast.AsyncFor | ast.While
CompoundNode = (ast.If, ast.With, ast.AsyncWith, ast.Try, ast.For, ast.AsyncFor, ast.While)


class Statement(NamedTuple):
    """Simple statement of a loop's body, or the head of a compound one.

    `inner`: names that are called to compute arguments. `asks`: the head of the loop, which asks an
    iterator, or the step of an environment, which makes data.
    """

    first: int
    last: int
    reads: frozenset[str]
    writes: frozenset[str]
    calls: frozenset[str]
    inner: frozenset[str]
    asks: bool = False


def loops_in(tree: ast.AST, first: int, *, last: int) -> list[LoopNode]:
    """Return the loops between two lines, the outer ones first."""
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, LoopNode) and first <= node.lineno <= last
    ]
    return sorted(found, key=lambda node: (node.lineno, -last_line(node)))


def statements(loop: LoopNode) -> list[Statement]:
    """Return all statements of a loop as a flat list, its own head first."""
    return [_head(loop), *_flat(loop.body)]


def _head(loop: LoopNode) -> Statement:
    if isinstance(loop, ast.While):
        return _statement(loop.test, first=loop.lineno)
    found = _statement(loop.iter, first=loop.lineno)
    return found._replace(writes=_names(loop.target, ast.Store), asks=not _only_counts(loop.iter))


def _only_counts(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = _called(node)
    return name in COUNTING_CALLS or (
        name in WRAPPING_CALLS and bool(node.args) and all(map(_only_counts, node.args))
    )


def _flat(body: Sequence[ast.stmt]) -> Iterator[Statement]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if not isinstance(node, CompoundNode):
            yield _statement(node, first=node.lineno)
            continue
        if isinstance(node, LoopNode):
            yield _head(node)._replace(asks=False)
        heads = [node.test] if isinstance(node, ast.If) else []
        heads += [item.context_expr for item in getattr(node, "items", ())]
        for head in heads:
            yield _statement(head, first=node.lineno)
        for name in ("body", "orelse", "finalbody"):
            yield from _flat(getattr(node, name, ()))
        for handler in getattr(node, "handlers", ()):
            yield from _flat(handler.body)


def _statement(node: ast.AST, *, first: int) -> Statement:
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    arguments = [part for call in calls for part in (*call.args, *(k.value for k in call.keywords))]
    inner = [one for part in arguments for one in ast.walk(part) if isinstance(one, ast.Call)]
    names = frozenset(map(_called, calls))
    taken_apart = [
        len(target.elts)
        for target in getattr(node, "targets", ())
        if isinstance(target, ast.Tuple) and "step" in names
    ]
    reads, writes = _names(node, ast.Load), _names(node, ast.Store)
    if isinstance(node, ast.AugAssign):
        reads |= writes
    return Statement(
        *(first, last_line(node), reads, writes, names, frozenset(map(_called, inner))),
        asks=max(taken_apart, default=0) >= MIN_STEP_VALUES,
    )


def _called(call: ast.Call) -> str:
    """Return the name of the called function.

    For a call on a call's result, such as jax.grad(loss)(x), that is the inner call's.
    """
    if isinstance(call.func, ast.Call):
        return _called(call.func)
    return dotted(call.func).rpartition(".")[2]


def _names(node: ast.AST, kind: type) -> frozenset[str]:
    """Return the names that a statement loads or stores.

    Names of comprehensions, as `x` of `[f(x) for x in rows]`, are left out.
    """
    inner = [one.target for one in ast.walk(node) if isinstance(one, ast.comprehension)]
    within = {name.id for one in inner for name in ast.walk(one) if isinstance(name, ast.Name)}
    names = (
        one for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, kind)
    )
    return frozenset(name.id for name in names) - within


def last_line(node: ast.AST) -> int:
    """Return the last line of a node, 0 if it has none."""
    return getattr(node, "end_lineno", None) or 0


def is_step(name: str) -> bool:
    """Return True if a function of this name is a training step or a part of one."""
    return STEP_NAME.search(name) is not None and EVALUATES.search(name) is None


def is_named_step(one: Statement) -> bool:
    """Return True if a statement calls a function with a step's name, or sleeps as a simulated
    one."""
    return SIMULATED in one.calls or any(map(is_step, one.calls))


def classify(
    loop: LoopNode, spent: Mapping[int, float], *, trained: Set[int] = frozenset()
) -> list[tuple[Statement, str]]:
    """Return each statement with INPUT, STEP or HOST; [] if there is no step.

    Steps are, in this order of preference: what runs a model that is trained, at the lines
    `trained`, and calls with a step's name; calls that sleep, as a
    simulated accelerator does; the last statement that uses the data of the iteration and takes
    some of the time. Input is everything that computes the values of the steps, the step of an
    environment, and the head of a loop that iterates over anything but numbers. `spent`: the share
    of the time by line.
    """
    found = statements(loop)
    body = [one for one in found[1:] if not one.asks]
    steps = [
        one
        for one in body
        if any(map(is_step, one.calls)) or any(one.first <= line <= one.last for line in trained)
    ]
    steps = steps or [one for one in body if SIMULATED in one.calls]
    if not steps:
        busy = [one for one in body if one.calls and _share(one, spent) >= MIN_SPENT]
        steps = _carried(found, busy) or _last_users(found, busy)
    if not steps:
        return []
    steps = _with_results(body, steps)
    inputs = _sources(found, steps)
    return [
        (one, STEP if one in steps else INPUT_KIND if one in inputs or one.asks else HOST)
        for one in found
    ]


def made_before(
    tree: ast.AST, loop: LoopNode, *, kinds: Sequence[tuple[Statement, str]]
) -> list[Statement]:
    """Return the statements before a loop, in the same block, that make what its input is made of:
    in a function that trains an epoch they run once for each."""
    names = ("body", "orelse", "finalbody")
    blocks = (getattr(node, name, None) for node in ast.walk(tree) for name in names)
    block = next((one for one in blocks if isinstance(one, list) and loop in one), [loop])
    needed = frozenset(name for one, kind in kinds if kind == INPUT_KIND for name in one.reads)
    made: list[Statement] = []
    for one in reversed(list(_flat(block[: block.index(loop)]))):
        if one.calls and one.writes & needed:
            made.append(one)
            needed |= one.reads
    return made


def _share(one: Statement, spent: Mapping[int, float]) -> float:
    return sum(share for line, share in spent.items() if one.first <= line <= one.last)


def _carried(found: Sequence[Statement], busy: Sequence[Statement]) -> list[Statement]:
    """Return the statements that update their own target with the data of the iteration, and keep
    its value for the next one: `w = f(w, x)`."""
    fresh = frozenset(name for one in found if not one.reads & one.writes for name in one.writes)
    return [one for one in busy if (one.reads & one.writes) - fresh and one.reads & fresh]


def _last_users(found: Sequence[Statement], busy: Sequence[Statement]) -> list[Statement]:
    fresh = frozenset(name for one in found for name in one.writes)
    return ([one for one in busy if one.reads & fresh] or list(busy))[-1:]


def _with_results(body: Sequence[Statement], steps: Sequence[Statement]) -> list[Statement]:
    """Return the steps, with the statements that belong to them: these use results of the steps,
    between them as `loss = out.mean()` before `loss.backward()`, for the next iteration as
    `w = w - 0.1 * dw`, or to wait for the device."""
    between = body[body.index(steps[0]) : body.index(steps[-1])]
    needed, made = (_reachable(body, steps, back=back) for back in (True, False))
    return [
        one
        for one in body
        if one in steps
        or (one in made and (one in between or one in needed or one.calls & SYNC_CALLS))
    ]


def _reachable(
    body: Sequence[Statement], steps: Sequence[Statement], *, back: bool
) -> list[Statement]:
    """Return what the steps depend on, if `back`, or what depends on them."""
    found = list(steps)
    for _ in body:
        if back:
            names = frozenset(name for one in found for name in one.reads)
            found += [one for one in body if one not in found and one.writes & names]
        else:
            names = frozenset(name for one in found for name in one.writes)
            found += [one for one in body if one not in found and one.reads & names]
    return found


def _sources(found: Sequence[Statement], steps: Sequence[Statement]) -> list[Statement]:
    """Return the statements that compute what the steps use, except steps and plain counting.

    A step that only sleeps stands for one that uses everything computed before it.
    """
    needed = frozenset(name for one in steps for name in one.reads)
    before = found[1 : found.index(steps[0])]
    written = frozenset(name for one in before for name in one.writes)
    if not (needed & written or found[0].asks):
        needed |= written
    inputs: list[Statement] = []
    for _ in found:
        data = frozenset(name for one in inputs for name in one.writes)
        more = [
            one
            for one in found[1:]
            if one not in inputs
            and one not in steps
            and one.writes & needed
            # not what only counts
            and (one.calls or one.reads - one.writes or one.writes & data)
        ]
        inputs += more
        needed |= frozenset(name for one in more for name in one.reads)
    return inputs
