"""Purpose of each statement of a training loop, from its source; pure functions."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fastfeed.diagnose.sample.callee import dotted

# Kinds of statements: the step's input comes from INPUT; HOST is the rest of the loop.
INPUT_KIND, STEP, HOST = "input", "step", "host"
STEP_NAME = re.compile(
    r"^(run|fit|backward|step|forward|minimize|update|optimize|compute|consume|learn|model|net|"
    r"network|loss|criterion)$|train|step$|_step_|backward|forward|^loss|loss$|loss_fn|"
    r"optimi[sz]er|apply_grad|GradientTape|(^|_)grads?$|gradient|zero_grad|model$"
)
INPUT_NAME = re.compile(
    r"^(__next__|next|get|load|read|make|fetch|decode|sample|generate|produce|prepare|preprocess|"
    r"augment|collate|batch|dequeue|pull|take|recv|receive|choice|permutation|stack|concatenate|"
    r"open|parse|crop|resize|draw)(_|\d|$)|_(batch|data|input|inputs|batches|set|samples?|examples?)$|"
    r"^get_|loader"
)
# Calls that train on a batch, and calls that use one: neither produces a batch.
TRAINS_ON_BATCH = re.compile(r"^(train|fit|learn|update)_(on_|one_|a_)?batch$")
USES_BATCH = re.compile(
    r"^(predict|test|eval|evaluate|validate|score|infer|log|show|plot|save|send)_(on_|one_|a_)?"
    r"(batch|data)$"
)
# An evaluation, whatever else the name says: estimate_loss, test_step.
EVALUATES = re.compile(r"^(eval|evaluate|estimate|validate|validation|test)(_|$)")
LOGGING_NAME = re.compile(
    r"^(print|notes?|append|add_scalar|tick)(_|$)|log|record|report|journal|diary|track|metric|"
    r"plot|write|save|callback"
)
# Waits for the work that a step has enqueued.
SYNC_CALLS = frozenset(("block_until_ready", "synchronize"))
# Steps without a telling name.
MATRIX_PRODUCTS = frozenset(("matmul", "dot", "einsum", "tensordot"))
COUNTING_CALLS = frozenset(("range", "count"))
WRAPPING_CALLS = frozenset(("enumerate", "zip", "iter", "tqdm", "reversed", "list"))
# An object with these has parameters that an optimiser trains.
TRAINED = frozenset(("parameters", "named_parameters", "trainable_variables", "trainable_weights"))
# The protocol of Gym: an environment has these, and its step returns four values, or five.
ENVIRONMENT = frozenset(("reset", "step"))
MIN_STEP_VALUES = 4
LoopNode = ast.For | ast.AsyncFor | ast.While
CompoundNode = (ast.If, ast.With, ast.AsyncWith, ast.Try, ast.For, ast.AsyncFor, ast.While)


class Statement(NamedTuple):
    """Simple statement of a loop's body, or the head of a compound one.

    `inner`: names that are called to compute arguments.
    """

    first: int
    last: int
    reads: frozenset[str]
    writes: frozenset[str]
    calls: frozenset[str]
    inner: frozenset[str]
    head: bool = False  # of the loop itself, which asks an iterator


def name_by_role(tree: ast.AST) -> ast.AST:
    """Rename the methods of a tree whose object says more than their name, and return it.

    What a model computes, as `agent.get_action(x)`, is "forward"; the step of an environment makes
    data: "fetch". An object is told by the other attributes of it that the tree uses.
    """
    used: dict[str, set[str]] = defaultdict(set)
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    for node in attributes:
        used[dotted(node.value)].add(node.attr)
    taken_apart = {
        id(node.value.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Tuple) and len(target.elts) >= MIN_STEP_VALUES
    }
    for node in attributes:
        owner = dotted(node.value)
        if owner in ("", "self"):
            continue
        if node.attr == "step" and used[owner] >= ENVIRONMENT and id(node) in taken_apart:
            node.attr = "fetch"
        elif used[owner] & TRAINED and INPUT_NAME.search(node.attr):
            node.attr = "forward"
    return tree


def loops_in(tree: ast.AST, first: int, *, last: int) -> list[LoopNode]:
    """Return the loops between two lines, the outer ones first."""
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, LoopNode) and first <= node.lineno <= last
    ]
    return sorted(found, key=lambda node: (node.lineno, -(node.end_lineno or 0)))


def statements(loop: LoopNode) -> list[Statement]:
    """Return all statements of a loop as a flat list, its own head first."""
    return [_head(loop), *_flat(loop.body)]


def _head(loop: LoopNode) -> Statement:
    if isinstance(loop, ast.While):
        return _statement(loop.test, first=loop.lineno, last=last_line(loop.test))
    found = _statement(loop.iter, first=loop.lineno, last=last_line(loop.iter))
    return found._replace(writes=_names(loop.target, ast.Store), head=not _only_counts(loop.iter))


def _only_counts(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = dotted(node.func).rpartition(".")[2]
    return name in COUNTING_CALLS or (
        name in WRAPPING_CALLS and bool(node.args) and all(map(_only_counts, node.args))
    )


def _flat(body: Sequence[ast.stmt]) -> Iterator[Statement]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if not isinstance(node, CompoundNode):
            yield _statement(node, first=node.lineno, last=last_line(node))
            continue
        heads: list[ast.AST] = [
            getattr(node, name) for name in ("test", "iter") if hasattr(node, name)
        ]
        heads += [item.context_expr for item in getattr(node, "items", ())]
        for head in heads:
            target = getattr(node, "target", None)
            found = _statement(head, first=node.lineno, last=last_line(head))
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
    """Return the name of the called function.

    For a call on a call's result, such as jax.grad(loss)(x), that is the inner call's.
    """
    return (
        _last(call.func)
        if isinstance(call.func, ast.Call)
        else dotted(call.func).rpartition(".")[2]
    )


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
    other = INPUT_NAME.search(name) or EVALUATES.search(name)
    return TRAINS_ON_BATCH.search(name) is not None or (
        STEP_NAME.search(name) is not None and other is None
    )


def counts_only(loop: LoopNode) -> bool:
    """Return True if a loop iterates over numbers only."""
    return isinstance(loop, ast.For) and _only_counts(loop.iter)


def is_plain_repetition(loop: LoopNode) -> bool:
    """Return True if a loop only repeats the same work.

    It takes no input, does not read its count and calls no step.
    """
    found = statements(loop)
    names = frozenset(name for one in found for name in one.calls)
    reads = frozenset(name for one in found[1:] for name in one.reads)
    asks = any(map(_is_input, found)) or any(map(is_step, names))
    return counts_only(loop) and not asks and not found[0].writes & reads


def loop_of_batches(loop: LoopNode) -> LoopNode:
    """Return the loop itself, or a loop inside it that has all its steps and takes their input: the
    outer one counts epochs, and what else it does, as an evaluation, is no step."""
    steps = [one for one, kind in classify(loop) if kind == STEP]
    for inner in loops_in(loop, loop.lineno + 1, last=last_line(loop)) if steps else ():
        found = classify(inner)
        takes = any(
            kind == INPUT_KIND or (kind == STEP and any(map(INPUT_NAME.search, one.inner)))
            for one, kind in found
        )
        if takes and all(inner.lineno < one.first <= last_line(inner) for one in steps):
            return loop_of_batches(inner)
    return loop


def classify(loop: LoopNode) -> list[tuple[Statement, str]]:
    """Return each statement with INPUT, STEP or HOST; [] if there is no step.

    Steps are, in this order of preference: calls with a step's name; products of matrices; `w =
    f(w, x)`; calls that sleep, as a simulated accelerator does, with the last statement that uses
    the input. Input is everything that computes the values of the steps, and the head of a loop
    that iterates over anything but numbers.
    """
    found = statements(loop)
    steps = [
        one
        for one in found[1:]
        if any(map(is_step, one.calls - one.inner)) or _has_nested_step(one)
    ]
    steps = steps or [
        one for one in found[1:] if one.calls & MATRIX_PRODUCTS and not _is_input(one)
    ]
    steps = steps or _carried(found) or _unnamed(found)
    if not steps:
        return []
    steps = _between(found, steps)
    inputs = _input_statements(found, steps)
    results = frozenset(name for one in steps for name in one.writes)
    # What only reads results of the steps, as an evaluation does, is none.
    inputs += [one for one in found if one.head or (_is_input(one) and not one.reads & results)]
    return [(one, STEP if one in steps else INPUT_KIND if one in inputs else HOST) for one in found]


def _carried(found: Sequence[Statement]) -> list[Statement]:
    """Return the statements that update their own target with the iteration's data: `w = f(w, x)`.

    The target keeps its value from one iteration to the next.
    """
    fresh = frozenset(name for one in found if not one.reads & one.writes for name in one.writes)
    carries = (
        one
        for one in found[1:]
        if one.calls and (one.reads & one.writes) - fresh and one.reads & fresh
    )
    return [one for one in carries if not _is_input(one)]


def _unnamed(found: Sequence[Statement]) -> list[Statement]:
    """Return the step that only its position shows: after everything that is computed for it."""
    asleep = [one for one in found[1:] if "sleep" in one.calls]
    until = found.index(asleep[0]) if asleep else len(found)
    data = _data_names(found) or frozenset(name for one in found[1:until] for name in one.writes)
    users = [
        one
        for one in found[1:until]
        if one.calls and one.reads & data and not _is_input(one) and not _only_logs(one)
    ]
    return [
        one
        for one in found[1:]
        if one in asleep or (one in users[-1:] and not (asleep and one.writes))
    ]


def _between(found: Sequence[Statement], steps: list[Statement]) -> list[Statement]:
    """Return the steps, with the statements between them and after them that belong to them.

    These work between two steps on their results, as `loss = out.mean()` before `loss.backward()`,
    compute from them what the next iteration starts with, as `w = w - 0.1 * dw`, or wait for the
    device. Statements that only log do not belong to them.
    """
    written = frozenset(name for one in steps for name in one.writes)
    read = frozenset(name for one in steps for name in one.reads)
    between = found[found.index(steps[0]) : found.index(steps[-1])]
    uses = [one for one in found if one.reads & written and not _only_logs(one)]
    follow = [one for one in uses if one in between or one.writes & read or one.calls & SYNC_CALLS]
    return steps + [
        one for one in follow if one not in steps and not one.head and not _is_input(one)
    ]


def _has_nested_step(one: Statement) -> bool:
    """Return True for steps such as `print(train(batch))` and `losses.append(step(x))`."""
    return any(is_step(name) for name in one.inner)


def _only_logs(one: Statement) -> bool:
    """Return True if a statement only logs."""
    return not one.writes and any(map(LOGGING_NAME.search, one.calls - one.inner))


def _is_input(one: Statement) -> bool:
    names = [
        name
        for name in one.calls - one.inner
        if not (TRAINS_ON_BATCH.search(name) or USES_BATCH.search(name))
    ]
    return any(map(INPUT_NAME.search, names)) and bool(one.writes)


def _data_names(found: Sequence[Statement]) -> frozenset[str]:
    """Return the names that hold data.

    These are the results of the loop's head and of input calls, and everything computed from them.
    """
    names = frozenset(name for one in found if one.head or _is_input(one) for name in one.writes)
    for _ in found:
        names |= frozenset(name for one in found if one.reads & names for name in one.writes)
    return names


def _input_statements(found: Sequence[Statement], steps: Sequence[Statement]) -> list[Statement]:
    """Return the statements that compute what the steps use, except steps and plain counting."""
    needed = _needed_names(found, steps)
    inputs: list[Statement] = []
    for _ in found:
        data = frozenset(name for one in inputs for name in one.writes)
        more = [
            one for one in found if one not in inputs and one not in steps and one.writes & needed
        ]
        more = [one for one in more if one.calls or one.reads - one.writes or one.writes & data]
        inputs += more
        needed |= frozenset(name for one in more for name in one.reads)
    return [one for one in inputs if not (one is found[0] and not one.head)]


def _needed_names(found: Sequence[Statement], steps: Sequence[Statement]) -> frozenset[str]:
    """Return the names that the steps use.

    A step that only sleeps stands for one that uses everything computed before it; if some of that
    is called input, except the names that are only logged.
    """
    read = frozenset(name for one in steps for name in one.reads)
    before = found[1 : found.index(steps[0])]
    written = frozenset(name for one in before for name in one.writes)
    if read & written or found[0].head:
        return read
    logged = frozenset(name for one in found if _only_logs(one) for name in one.reads)
    return read | (written - logged if any(map(_is_input, before)) else written)
