"""A FeedRunner in place of a generator that a function of the script returns."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from fastfeed.diagnose.evidence import PRODUCER, TRAINER
from fastfeed.diagnose.patches.datasets import keras_sink, producer_words
from fastfeed.diagnose.patches.drawn_seed import drawn_seed
from fastfeed.diagnose.patches.names import COMPREHENSIONS, own
from fastfeed.diagnose.patches.proposal import (
    ALIKE,
    ALONE,
    RUNNER,
    PatchCase,
    Proposal,
    imported_by,
)
from fastfeed.diagnose.patches.serial_loop import shown_by_loop
from fastfeed.diagnose.patches.source_file import SourceFile, called
from fastfeed.probes.places import Place

Function = ast.FunctionDef
HAVE_ONE = ("torch", "runner")  # loops whose producers are not this process's own code


class GeneratorCall:
    """Producers run the generator function of the script that takes most of the input's time.

    It is found in the stacks of the producers, else of the loop's thread: the outermost function in
    them that yields. The one call of it that makes the loop's generator is replaced.
    """

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        loop = case.diagnosis.evidence.loop
        if loop is None or loop.kind in HAVE_ONE:
            return
        for file, function in generators_of(case, most=1)[:1]:
            yield from _instead_of(case, file, function=function, keras=loop.kind == "keras")


def generators_of(case: PatchCase, *, most: int) -> list[tuple[SourceFile, Function]]:
    """Return the generator functions in the stacks of the producers, else of the loop's thread: the
    `most` outermost ones of each stack, those with most samples first."""
    for role in (PRODUCER, TRAINER):
        weights: Counter[tuple[SourceFile, Function]] = Counter()
        for task in case.diagnosis.evidence.tasks_of(role):
            for stack, samples in task.stacks.items():
                made = [found for place in stack if (found := _generator_at(case, place))]
                weights.update(dict.fromkeys(made[:most], samples))
        if weights:
            return [one for one, _ in weights.most_common()]
    return []


def _generator_at(case: PatchCase, place: Place) -> tuple[SourceFile, Function] | None:
    """Return the generator function that a place is in; None if it is in another one, or in that of
    the loop."""
    file, loop = case.file_named(place.file), case.loop_line()
    functions = file.around(place.line, Function) if file is not None and place.users else []
    if file is None or not functions or functions[0].name != place.function:
        return None
    around_loop = file.around(loop[1], Function) if loop and loop[0] is file else []
    made = _yields(functions[0]) and functions[0] not in around_loop
    return (file, functions[0]) if made else None


def _instead_of(
    case: PatchCase, made_in: SourceFile, *, function: Function, keras: bool
) -> Iterator[Proposal]:
    """Yield the changes of the call of a generator function, if there is one such call."""
    told = case.is_told(made_in, by=function)
    calls = [
        (file, node)
        for file in case.files.values()
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Call) and called(node) == function.name
        if not _taken_at_once(file, node, function=function)
    ]
    if len(calls) != 1:
        return
    file, call = calls[0]
    name, given = file.source(call.func), call.args or call.keywords
    sinks = [f".{one}()" for one in ("torch", "jax") if one in imported_by(file)]
    shows = shown_by_loop(case)
    outer = next(iter(file.ancestors(call)))
    looped = isinstance(outer, ast.For) and outer.iter is call
    for words, advice in producer_words(case, copies=False, told=told):
        seed = drawn_seed(case, file, body=function.body, options=words, made_in=made_in)
        source, forms = f"lambda: {file.source(call)}" if given else name, []
        for sink in [keras_sink(file)] if keras else [*sinks, ""]:
            made = f"{RUNNER}({source}, {words}{seed}){sink}"
            edit = file.replaced(call, made if keras or looped else f"iter({made})")
            title = f"{RUNNER}({name}, {words}){sink}"
            edits = (*case.runner_import(file), edit)
            one = Proposal(title, edits, advice, shows=shows, makes=True)
            forms.append(replace(one, allows=ALIKE) if words == ALONE else one)
        yield replace(forms[0], instead=tuple(forms[1:]))


def _taken_at_once(file: SourceFile, call: ast.Call, *, function: Function) -> bool:
    """Return True for a call within the function, within `next` or a comprehension, or for a
    runner."""
    around = list(file.ancestors(call))
    outer = around[0] if around else None
    return (
        function in around
        or any(isinstance(one, COMPREHENSIONS) for one in around)
        or (isinstance(outer, ast.Call) and called(outer) in ("next", RUNNER, "list", "len"))
    )


def _yields(function: Function) -> bool:
    nodes = (node for one in function.body for node in own(one))
    return any(isinstance(one, (ast.Yield, ast.YieldFrom)) for one in nodes)
