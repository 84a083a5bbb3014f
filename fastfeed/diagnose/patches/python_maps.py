"""A FeedRunner in place of a tf.data map that calls Python."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from fastfeed.diagnose.patches.datasets import producer_words
from fastfeed.diagnose.patches.names import functions_of
from fastfeed.diagnose.patches.proposal import ALIKE, ALONE, PatchCase, Proposal, imported_by
from fastfeed.diagnose.patches.source_file import Edit, SourceFile, called

PYTHON_OPS = {"py_function", "numpy_function", "py_func", "eager_py_func"}  # of TensorFlow
DATASET_OPS = ("map", "batch", "padded_batch", "repeat", "shuffle", "prefetch", "cache")


class PythonMaps:
    """Records of a data set that go through Python in the producers of a runner, which makes the
    batches of the `batch` behind the map. In the data set, Python's lock lets one of them run."""

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        chain = list(case.sites(*(f"tf.data {name}" for name in DATASET_OPS)))  # the last first
        for (_, file, batch), (site, other, mapped) in itertools.pairwise(chain):
            given = _batches(file, batch)
            if other is not file or called(mapped) != "map" or not given or not mapped.args:
                continue
            function = mapped.args[0]
            if site.name != "tf.data map" or not _calls_python(file, function):
                continue
            made = _eager(file, function)
            for words, advice in producer_words(case):
                options = f"records=True, transform={made}, {given}, {words}"
                edits = (
                    *case.runner_import(file),
                    *_runner(file, batch, mapped=mapped, options=options),
                )
                title = f"FeedRunner(..., {words}).dataset() in place of a map that calls Python"
                allows = ALIKE if words == ALONE else Proposal.allows
                yield Proposal(title, edits, advice, makes=True, allows=allows)


def _runner(
    file: SourceFile, batch: ast.Call, *, mapped: ast.Call, options: str
) -> tuple[Edit, ...]:
    """Return the edits that remove a map, and put a runner in the place of the batch behind it."""
    if not isinstance(batch.func, ast.Attribute) or not isinstance(mapped.func, ast.Attribute):
        return ()
    begin, end = file.span(batch)
    return (
        Edit(file.name, begin, begin, "FeedRunner("),
        Edit(file.name, file.span(mapped.func.value)[1], file.span(mapped)[1], ""),
        Edit(file.name, file.span(batch.func.value)[1], end, f", {options}).dataset()"),
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
    return f'{options}, last_batch="drop" if {file.source(dropped)} else "keep"'


def _calls_python(file: SourceFile, function: ast.expr) -> bool:
    """Return True if a function calls Python out of a graph."""
    bodies: list[ast.AST] = [function, *functions_of(file, function)]
    nodes = (node for body in bodies for node in ast.walk(body))
    return any(isinstance(one, ast.Call) and called(one) in PYTHON_OPS for one in nodes)


def _eager(file: SourceFile, function: ast.expr) -> str:
    """Return a function of one item that makes arrays of what a mapped function returns."""
    name = imported_by(file).get("tensorflow") or "tf"
    known = [function] if isinstance(function, ast.Lambda) else functions_of(file, function)
    several = any(len(one.args.args) > 1 for one in known)
    made = f"make={name}.function({file.source(function)})"  # a graph, as in the map
    call = f"make({'*' * several}item)"
    return f"lambda item, {made}: {name}.nest.map_structure(lambda one: one.numpy(), {call})"
