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
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.profilers import (
    BIN,
    CLOSE,
    LIMITED,
    PACKAGES,
    REPORTED,
    answer,
    of_fastfeed,
    of_gpuprof,
    of_traceml,
    output,
    scored,
)
from bench.public.prepare import Prepared, Unprepared, prepare
from bench.public.recipe import FOURTH_HELD, TEST, Recipe, Variant
from bench.public.recipes import HALVES, RECIPES
from bench.public.runs import START_S, RunFailed, diagnose, execute, rate
from bench.results import SCHEMA, machine, write
from bench.scenarios_runs import Failed

KIND = "public_profilers"
FOUND = "now"
WATCHED = "watched"  # a variant that ends by SystemExit, so that a profiler can write its report
ENDS = "tally.exit"
MODEL = '''"""The model of a loop, for the line of TraceML's quickstart."""

import torch


def model(*places):
    """Return the first module among the values of `places`, or of an attribute of `self`."""
    values = [value for place in places for value in place.values()]
    values += list(vars(places[0].get("self", torch)).values())
    return next(value for value in values if isinstance(value, torch.nn.Module))
'''
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
    """Puts the innermost loops of a training into steps of TraceML."""

    def __init__(self) -> None:
        self.loops = 0

    def visit_For(self, node: ast.For) -> ast.AST:
        return self._traced(node)

    def visit_While(self, node: ast.While) -> ast.AST:
        return self._traced(node)

    def _traced(self, node: Any) -> ast.AST:
        before = self.loops
        self.generic_visit(node)
        called = {
            one.func.attr
            for line in node.body
            for one in ast.walk(line)
            if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute)
        }
        if self.loops == before and {"backward", "step"} <= called:
            self.loops += 1
            given = "__import__('traced_model').model(locals(), globals())"
            line = f"with __import__('traceml_ai').trace_step({given}):\n    pass"
            step = ast.parse(line).body[0]
            assert isinstance(step, ast.With)
            step.body, node.body = node.body, [step]
        return node  # type: ignore[no-any-return]


def trace(folder: Path, script: str) -> None:
    """Write the lines of TraceML's quickstart into the copy of a script.

    Raises:
        Failed: No loop of the copy calls both `backward()` and `step()`.
    """
    loops = 0
    for path in folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if ".backward()" not in text and path != folder / script:
            continue
        tree, found = ast.parse(text), Traced()
        tree = found.visit(tree)
        loops += found.loops
        if path == folder / script:
            tree.body[_imports(tree) : _imports(tree)] = ast.parse(
                "import traceml_ai\ntraceml_ai.init(mode='auto')"
            ).body
        path.write_text(ast.unparse(ast.fix_missing_locations(tree)) + "\n", encoding="utf-8")
    if not loops:
        raise Failed("no loop calls both backward() and step()")
    (folder / "traced_model.py").write_text(MODEL)


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
    trace(ready.folder, ready.script[0])
    command = [str(BIN / "traceml"), "run", ready.script[0], "--args", *ready.script[1:]]
    code, said, _ = execute(command, ready, seconds + 2 * START_S)
    summary = next(ready.folder.glob("logs/*/final_summary.json"), None)
    if summary is None:
        raise Failed(f"no summary: exit {code}: {said}")
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
        told = str(error).replace(str(given.work), "").replace(str(given.checkouts), "")
        return {**answer("", None, share=None), "failed": told, "steps_per_second": None}


def alone(recipe: Recipe, variant: str, given: argparse.Namespace) -> float:
    timing = {"warmup": given.warmup, "seconds": given.seconds}
    ready = prepare(recipe, variant, checkouts=given.checkouts, output=given.work, timing=timing)
    found = rate(ready, seconds=given.seconds, warmup=given.warmup)
    return float(found["steps_per_second"])


def measured(recipe: Recipe, tools: list[str], given: argparse.Namespace) -> dict[str, Any]:
    """Return the row of a script."""
    now, free = [alone(recipe, FOUND, given)], [alone(recipe, "free", given)]
    said = {tool: watched(recipe, tool, given) for tool in tools}
    now.append(alone(recipe, FOUND, given))
    free.append(alone(recipe, "free", given))
    row = {"script": recipe.name, "variant": FOUND, "rates": now, "ready": free, "tools": said}
    return scored(row, free=free)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.public.profilers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="scripts; all, if none is named")
    parser.add_argument("--checkouts", type=Path, required=True, help="of OWNER+NAME folders")
    parser.add_argument("--output", type=Path, default=Path("build/profilers"))
    parser.add_argument("--seconds", type=float, default=5.0, help="of a run alone")
    parser.add_argument("--warmup", type=float, default=2.0, help="seconds that do not count")
    parser.add_argument("--watched", type=float, default=12.0, help="seconds under a tool")
    given = parser.parse_args()
    given.checkouts, given.work = given.checkouts.resolve(), given.output.resolve() / "work"
    there = {one.metadata["Name"].lower() for one in metadata.distributions()}
    tools = [tool for tool, package in PACKAGES.items() if package in there | {"fastfeed"}]
    known = {tool: PACKAGES[tool] for tool in tools} | {"torch": "torch"}
    document = {
        "schema": SCHEMA,
        "kind": KIND,
        "plan": {"watched": given.watched, "limited": LIMITED, "close": CLOSE, "from": REPORTED},
        "machine": machine(),
        "versions": {name: metadata.version(package) for name, package in known.items()},
        "not_installed": sorted(set(PACKAGES) - set(tools)),
        "not_run": {},
        "rows": [],
    }
    for recipe in chosen():
        if given.names and recipe.name not in given.names:
            continue
        try:
            document["rows"].append(measured(recipe, tools, given))
        except (RunFailed, Unprepared) as error:
            told = str(error).replace(str(given.work), "").replace(str(given.checkouts), "")
            document["not_run"][recipe.name] = told
        write(document, given.output)
        print(recipe.name, "done", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
