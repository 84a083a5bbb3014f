"""A FeedRunner in place of a tf.data map that calls Python."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator

from fastfeed.diagnose.patches.datasets import producer_words
from fastfeed.diagnose.patches.epochs import is_left_early
from fastfeed.diagnose.patches.names import changed_outside, functions_of, last_of, path_of
from fastfeed.diagnose.patches.proposal import ALIKE, ALONE, PatchCase, Proposal, imported_by
from fastfeed.diagnose.patches.source_file import Edit, SourceFile, called

PYTHON_OPS = {"py_function", "numpy_function", "py_func", "eager_py_func"}  # of TensorFlow
GPU_DRIVER = "/dev/nvidiactl"


class PythonMaps:
    """A runner in place of a map and the `batch` right behind it: its producers run the mapped
    function. In a data set, calls of Python take turns, because each needs the interpreter
    lock."""

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        if is_left_early(case):
            return
        for _, file, batch in case.sites("tf.data batch"):
            mapped = batch.func.value if isinstance(batch.func, ast.Attribute) else None
            given = _batches(file, batch)
            if not isinstance(mapped, ast.Call) or called(mapped) != "map" or not given:
                continue
            if not mapped.args or _is_counted(case, file, batch=batch):
                continue
            inner = _called_by(file, mapped.args[0])
            if not inner:
                continue
            apart = not any(_shared_by(one, file) for one in inner)
            told = any(case.is_told(file, by=one) for one in inner)
            made = _eager(file, mapped.args[0])
            # in each worker process, TensorFlow would take the memory of the GPU
            here = told or os.path.exists(GPU_DRIVER)
            for words, advice in producer_words(case, copies=True, apart=apart, told=here):
                options = f"records=True, transform={made}, {given}, {words}"
                edits = (*case.runner_import(file), *_runner(file, batch, options=options))
                title = f"FeedRunner(..., {words}).dataset() in place of a map that calls Python"
                allows = ALIKE if words == ALONE else Proposal.allows
                yield Proposal(title, edits, advice, makes=True, allows=allows)


def _runner(file: SourceFile, batch: ast.Call, *, options: str) -> tuple[Edit, ...]:
    """Return the edits that remove a map, and put a runner in the place of the batch behind it."""
    mapped: ast.Call = batch.func.value  # type: ignore[attr-defined]
    begin, end = file.span(batch)
    return (
        Edit(file.name, begin, begin, "FeedRunner("),
        Edit(file.name, file.span(mapped.func.value)[1], end, f", {options}).dataset()"),  # type: ignore[attr-defined]
    )


def _batches(file: SourceFile, batch: ast.Call) -> str:
    """Return the batches of a call of `batch` as options of a runner; "" for another call."""
    given = {one.arg: one.value for one in batch.keywords}
    size = batch.args[0] if batch.args else given.get("batch_size")
    dropped = batch.args[1] if len(batch.args) > 1 else given.get("drop_remainder")
    if called(batch) != "batch" or size is None:
        return ""
    options = f"batch_size={file.source(size)}"
    if dropped is None:
        return options
    return f'{options}, last_batch="drop" if ({file.source(dropped)}) else "keep"'


def _is_counted(case: PatchCase, file: SourceFile, *, batch: ast.Call) -> bool:
    """Return True if a file may ask how many batches there are, of which a runner says nothing."""
    nodes = [node for one in case.files.values() for node in ast.walk(one.tree)]
    calls = [one for one in nodes if isinstance(one, ast.Call)]
    asked = {path_of(arg) for one in calls if called(one) == "len" for arg in one.args}
    statement = file.statement_of(batch)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    held = {last_of(path_of(one)) for one in targets} - {""}
    return "cardinality" in map(called, calls) or bool(held & set(map(last_of, asked)))


def _shared_by(function: ast.FunctionDef, file: SourceFile) -> set[str]:
    """Return the names of what a function changes for others: a record belongs to its call."""
    own = {one.arg for one in function.args.args}
    changes = changed_outside(function, modules=file.modules)
    return {one for one in changes if one.partition(".")[0] not in own}


def _called_by(file: SourceFile, function: ast.expr) -> list[ast.FunctionDef]:
    """Return the functions of a file that run if a mapped function calls Python out of a graph, and
    itself if it is one; none if it does not."""
    bodies: list[ast.AST] = [function, *functions_of(file, function)]
    nodes = (node for body in bodies for node in ast.walk(body))
    calls = [one for one in nodes if isinstance(one, ast.Call) and called(one) in PYTHON_OPS]
    found = [one for one in bodies if isinstance(one, ast.FunctionDef)]
    for one in calls:
        given = [*one.args[:1], *(word.value for word in one.keywords if word.arg == "func")]
        found += [inner for maker in given for inner in functions_of(file, maker)]
    return found if calls else []


def _eager(file: SourceFile, function: ast.expr) -> str:
    """Return a function of one item that makes arrays of what a mapped function returns."""
    name = imported_by(file).get("tensorflow") or "tf"
    # a graph, as in the map, which is traced once
    made = f"make={name}.function({file.source(function)}, reduce_retracing=True)"
    call = "make(*item) if isinstance(item, tuple) else make(item)"
    return f"lambda item, {made}: {name}.nest.map_structure(lambda one: one.numpy(), {call})"
