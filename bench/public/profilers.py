"""What other profilers say about public PyTorch scripts whose limit is measured.

    python -m bench.public.profilers --checkouts FOLDER [NAME ...] [--output build/profilers]

The scripts are those of the held-out halves (`--list` of `python -m bench.public`) that train from
an input, not from an environment. A copy runs alone, with its input and with a ready batch, before
and after the tools: `fastfeed diagnose`, and TraceML and gpuprof with the lines of their
quickstarts. TraceML's go around the loops that call `backward()` and an optimizer's `step()`,
gpuprof's around the whole script. The truth is the rate with the input, against that with a ready
batch. A tool that is not installed beside this interpreter is named and omitted.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.profilers import (
    BIN,
    LIMITED,
    answer,
    begun,
    of_fastfeed,
    of_gpuprof,
    of_traceml,
    output,
    scored,
)
from bench.public.command import undisturbed
from bench.public.prepare import Prepared, Unprepared, prepare
from bench.public.recipe import FOURTH_HELD, TEST, Recipe, Variant
from bench.public.recipes import HALVES, RECIPES
from bench.public.runs import START_S, Disturbed, RunFailed, diagnose, execute
from bench.results import write
from bench.scenarios_runs import Failed

KIND = "public_profilers"
FOUND = "now"
WATCHED = "watched"  # a variant that ends by SystemExit, so that a profiler can write its report
ENDS = "tally.exit"
LINES = '''"""What the lines of TraceML's quickstart get."""

import torch
import traceml_ai


def fetched(source):
    """Return what a loop reads; TraceML sees the fetches of a DataLoader by itself."""
    known = isinstance(source, (torch.utils.data.DataLoader, range, list, tuple, int))
    return source if known else traceml_ai.wrap_dataloader_fetch(source)


def model(*places):
    """Return the first module among the values of `places`, or else of their attributes."""
    values = [value for place in places for value in place.values()]
    inner = [one for value in values for one in getattr(value, "__dict__", {}).values()]
    return next(value for value in values + inner if isinstance(value, torch.nn.Module))
'''
AI, OWN = "__import__('traceml_ai')", "__import__('traced_lines')"
BACKWARD = "backward"
ERROR = re.compile(r"\s*\w+(Error|Exception|Iteration)\b")
AROUND = ("enumerate", "tqdm", "trange")
PROFILED = '''"""A script in the profile of gpuprof."""

import runpy
import sys

import gpuprof

sys.argv = sys.argv[1:]
with gpuprof.profile("training"):
    runpy.run_path(sys.argv[0], run_name="__main__")
'''


def chosen() -> list[Recipe]:
    """Return the recipes: PyTorch, held out, with an input that can be made ready."""
    return [
        recipe
        for recipe in RECIPES
        if recipe.framework == "torch"
        and HALVES[recipe.name] in (TEST, FOURTH_HELD)
        and recipe.kind != "rl"
        and recipe.free != Variant()
    ]


class Traced(ast.NodeTransformer):
    """Puts the bodies of the innermost loops that call one of `names` into steps of TraceML."""

    def __init__(self, names: set[str]) -> None:
        self.loops, self._names = 0, names

    def visit_For(self, node: ast.For) -> ast.AST:
        return self._traced(node)

    def visit_While(self, node: ast.While) -> ast.AST:
        return self._traced(node)

    def _traced(self, node: ast.For | ast.While) -> ast.AST:
        before = self.loops
        self.generic_visit(node)
        parts = [one for line in node.body for one in ast.walk(line)]
        if self.loops == before and self._names & {_called(one) for one in parts}:
            self.loops += 1
            step = ast.parse(f"with {AI}.trace_step({OWN}.model(locals(), globals())): pass").body[
                0
            ]
            assert isinstance(step, ast.With)
            step.body, node.body = node.body, [step]
            if isinstance(node, ast.For):
                node.iter = _fetched(node.iter)
        return node


def _called(node: ast.AST) -> str:
    function = node.func if isinstance(node, ast.Call) else None
    return str(getattr(function, "attr", getattr(function, "id", "")))


def _fetched(source: ast.expr) -> ast.expr:
    """Return what a loop reads, within `enumerate` or a progress bar."""
    if isinstance(source, ast.Call) and getattr(source.func, "id", "") in AROUND and source.args:
        source.args[0] = _fetched(source.args[0])
        return source
    made = ast.parse(f"{OWN}.fetched(0)", mode="eval").body
    assert isinstance(made, ast.Call)
    made.args = [source]
    return made


def trace(root: Path, script: Path) -> None:
    """Write the lines of TraceML's quickstart into a copy of a script, and of what lies beside it:
    around the loops that call `backward()`, else around those that call a function that does.

    Raises:
        Failed: No loop calls `backward()`, or a function that does.
    """
    trees = {path: tree for path in root.rglob("*.py") if (tree := _tree(path)) is not None}
    steps = {
        one.name
        for tree in trees.values()
        for one in ast.walk(tree)
        if isinstance(one, ast.FunctionDef) and BACKWARD in map(_called, ast.walk(one))
    }
    if not _traced(trees, {BACKWARD}) and not _traced(trees, steps):
        raise Failed("no loop calls backward()")
    at, init = _imports(trees[script]), "import traceml_ai\ntraceml_ai.init(mode='auto')"
    trees[script].body[at:at] = ast.parse(init).body
    for path, tree in trees.items():
        path.write_text(ast.unparse(ast.fix_missing_locations(tree)) + "\n", encoding="utf-8")
    (script.parent / "traced_lines.py").write_text(LINES)


def _tree(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_text(encoding="utf-8", errors="replace"))
    except SyntaxError:  # of Python 2
        return None


def _traced(trees: dict[Path, ast.Module], names: set[str]) -> int:
    """Change the loops that call one of `names`; return how many there are."""
    found = Traced(names)
    for tree in trees.values():
        before, found.loops = found.loops, 0
        found.visit(tree)
        found.loops += before
    return found.loops


def _imports(tree: ast.Module) -> int:
    """Return where imports of its own may stand: after docstring and `from __future__`."""
    at = 0
    for n, node in enumerate(tree.body):
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            at = n + 1
    return at or int(ast.get_docstring(tree) is not None)


def by_fastfeed(ready: Prepared, seconds: float) -> dict[str, Any]:
    said = diagnose(ready, seconds=seconds, evidence=ready.folder / "evidence.json.gz")
    return of_fastfeed(said)


def by_traceml(ready: Prepared, seconds: float) -> dict[str, Any]:
    root = Path(ready.environment["PUBLIC_SETTINGS"]).parent
    trace(root, ready.folder / ready.script[0])
    command = [str(BIN / "traceml"), "run", ready.script[0], "--args", *ready.script[1:]]
    code, said, _ = execute(command, ready, seconds + 2 * START_S)
    summary = next(ready.folder.glob("logs/*/final_summary.json"), None)
    if summary is None or code:
        last = [f"exit {code}: {said}"]
        for log in ready.folder.glob("logs/**/training.stderr.log"):
            last += [line.strip() for line in log.read_text().splitlines() if ERROR.match(line)]
        raise Failed(last[-1])
    return of_traceml(json.loads(summary.read_text()))


def by_gpuprof(ready: Prepared, seconds: float) -> dict[str, Any]:
    (ready.folder / "profiled.py").write_text(PROFILED)
    command = [sys.executable, "profiled.py", *ready.script]
    code, said, _ = execute(command, ready, seconds + 2 * START_S)
    if code:
        raise Failed(f"exit {code}: {said}")
    insights = [str(BIN / "gpuprof"), "insights", "--json"]
    return of_gpuprof(json.loads(output(ready.folder, insights, seconds=0)))


TOOLS: dict[str, Callable[[Prepared, float], dict[str, Any]]] = {
    "fastfeed": by_fastfeed,
    "TraceML": by_traceml,
    "gpuprof": by_gpuprof,
}


def watched(recipe: Recipe, tool: str, given: argparse.Namespace) -> dict[str, Any]:
    """Return what a tool says about a script as it is."""
    timing = {"warmup": given.warmup, "seconds": given.watched - given.warmup}
    changes = {**recipe.changes, WATCHED: Variant(switches=(ENDS,))}
    try:
        ready = prepare(
            replace(recipe, changes=changes),
            FOUND if tool == "fastfeed" else WATCHED,
            checkouts=given.checkouts,
            output=given.work,
            timing=None if tool == "fastfeed" else timing,  # it ends the script itself
        )
        return {**TOOLS[tool](ready, given.watched), "steps_per_second": None}
    except (Failed, RunFailed, StopIteration, OSError, ValueError, KeyError) as error:
        return {**answer("", None, share=None), "failed": told(error), "steps_per_second": None}


def told(error: Exception) -> str:
    """Return the text of an error without paths of this machine."""
    return re.sub(r"/\S*/", "", str(error))


def measured(recipe: Recipe, tools: list[str], given: argparse.Namespace) -> dict[str, Any]:
    """Return the row of a script. Its truth is clear if both pairs of runs agree."""
    now, free = [_alone(recipe, FOUND, given)], [_alone(recipe, "free", given)]
    said = {tool: watched(recipe, tool, given) for tool in tools}
    now.append(_alone(recipe, FOUND, given))
    free.append(_alone(recipe, "free", given))
    row = {"script": recipe.name, "variant": FOUND, "rates": now, "ready": free, "tools": said}
    found = scored(row, free=free)
    sides = {1 - one / ready >= LIMITED for one, ready in zip(now, free, strict=True)}
    return {**found, "clear": found["clear"] and len(sides) == 1}


def _alone(recipe: Recipe, variant: str, given: argparse.Namespace) -> float:
    return float(undisturbed(recipe, variant, given)["steps_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.public.profilers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="scripts; all, if none is named")
    parser.add_argument("--checkouts", type=Path, required=True, help="of OWNER+NAME folders")
    parser.add_argument("--output", type=Path, default=Path("build/profilers"))
    parser.add_argument("--seconds", type=float, default=5.0, help="of a run alone")
    parser.add_argument("--warmup", type=float, default=2.0, help="seconds that do not count")
    parser.add_argument("--watched", type=float, default=12.0, help="seconds under a tool")
    given = parser.parse_args()
    unknown = set(given.names) - {recipe.name for recipe in chosen()}
    if unknown:
        parser.error(f"no such script: {', '.join(sorted(unknown))}")
    given.checkouts, given.work = given.checkouts.resolve(), given.output.resolve() / "work"
    tools, document = begun(KIND, watched=given.watched, not_run={})
    for recipe in chosen():
        if given.names and recipe.name not in given.names:
            continue
        try:
            document["rows"].append(measured(recipe, tools, given))
        except (RunFailed, Unprepared, Disturbed) as error:
            document["not_run"][recipe.name] = told(error)
        write(document, given.output)
        print(recipe.name, "done", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
