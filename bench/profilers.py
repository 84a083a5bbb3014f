"""What other profilers say about training scripts whose limit is known.

    python -m bench.profilers [NAME ...] [--seconds 10] [--output build/profilers]

Each PyTorch script of tests/scenarios is copied, in three variants. In the copy, the wait that
stands for the accelerator is the forward pass of a tiny module, so that every tool sees a step of
PyTorch. A copy runs alone, under `fastfeed diagnose`, and with the lines of the quickstart of
TraceML and of gpuprof. It runs alone twice, for less than half of the time. The truth is the rate
of the copy alone, against that of the variant with its input at hand. A tool that is not installed
beside this interpreter is named and omitted.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import statistics
import sys
import tempfile
import textwrap
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.results import SCHEMA, machine, write
from bench.scenarios_runs import FASTFEED, FOLDER, START_S, Failed, last_line, on_disk, run_in
from tests.scenarios.labels import LABELS

KIND = "profilers"
NAMES = [name for name, label in LABELS.items() if label.framework == "torch"]
VARIANTS = ("free", "fixed", "slow")
PACKAGES = {"fastfeed": "fastfeed", "TraceML": "traceml-ai", "gpuprof": "gpuprof"}
LIMITED, CLOSE = 0.1, (0.05, 0.15)  # share of the speed lost to input; a truth that is hardly one
REPORTED = {"TraceML": 0.1, "gpuprof": 0.15}  # the wait for input that they report, of a step
BIN = Path(sys.prefix) / "bin"
NOT_RUN = {
    "metrics of a GPU, and gaps on it": "this machine has none; gpuprof stands in made-up ones",
    "scripts of NumPy, TensorFlow and Keras": "TraceML and gpuprof observe PyTorch only",
}
STEP = re.compile(r"( *)time\.sleep\((.+)\)  # forward and backward on the accelerator")
MODULE = '''"""A step that waits as for an accelerator, as a module of PyTorch."""

import time

import torch


class Waiting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, seconds):
        time.sleep(seconds)
        return self.weight.sum()


model = Waiting()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
'''
IMPORTS = {"TraceML": 'import traceml_ai as traceml\n\ntraceml.init(mode="auto")'}
IMPORTS |= {"gpuprof": "import gpuprof"}
WAITS = re.compile("waiting on the loader|Dataloader stall|Prefetch queue starved")  # of gpuprof


def edited(source: str, tool: str = "", *, free: bool = False) -> str:
    """Return a script whose step is one of PyTorch, with the lines that a tool needs.

    TraceML sees the fetches of a DataLoader by itself. The `free` variant iterates over something
    else, which has to be wrapped.
    """
    lines = source.splitlines()
    at, step = next((n, m) for n, line in enumerate(lines) if (m := STEP.fullmatch(line)))
    around = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.For | ast.While) and node.lineno <= at < (node.end_lineno or 0)
    ]
    outer, inner = min(around, key=lambda n: n.lineno), max(around, key=lambda n: n.lineno)
    new = f"optimizer.zero_grad(set_to_none=True)\nmodel({step[2]}).backward()\noptimizer.step()"
    if tool == "TraceML":
        new = "with traceml.trace_step(model):\n" + textwrap.indent(new, "    ")
    lines[at] = textwrap.indent(new, step[1])
    if tool == "TraceML" and free and isinstance(inner, ast.For):
        for line, column, text in (
            (inner.iter.end_lineno or 0, inner.iter.end_col_offset or 0, ")"),
            (inner.iter.lineno, inner.iter.col_offset, "traceml.wrap_dataloader_fetch("),
        ):
            old = lines[line - 1]
            lines[line - 1] = old[:column] + text + old[column:]
    if tool == "gpuprof":
        for n in range(outer.lineno - 1, outer.end_lineno or 0):
            lines[n] = textwrap.indent(lines[n], "    ")
        first = " " * outer.col_offset + 'with gpuprof.profile("training"):\n'
        lines[outer.lineno - 1] = first + lines[outer.lineno - 1]
    start = lines.index("args = arguments()")
    imports = ["", *filter(None, [IMPORTS.get(tool)]), "from accelerator import model, optimizer"]
    return "\n".join([*lines[: start + 1], *imports, *lines[start + 1 :], ""])


def answer(said: str, limited: bool | None, *, share: float | None, **more: Any) -> dict[str, Any]:
    """`limited`: the tool says that input limits the training; None if it says nothing."""
    return {"said": said, "limited": limited, "share": share, "change": "", "gain": None} | more


def of_fastfeed(found: dict[str, Any]) -> dict[str, Any]:
    """The answer in the JSON of `fastfeed diagnose`."""
    verdict, first = found["verdict"], next(iter(found["recommendations"]), {})
    said = found["abstained"] or f"{verdict}: {found['headline']}"
    limited = None if verdict is None else verdict.startswith("input.")
    change = re.sub(r" \(pid [^)]*\)", "", first.get("change", ""))  # paths of this machine
    gain = first.get("predicted_speedup")
    return answer(said, limited, share=found.get("lost_to_input"), change=change, gain=gain)


def of_traceml(found: dict[str, Any]) -> dict[str, Any]:
    """The answer in final_summary.json; a finding about input counts also if another one leads."""
    first, times = found["primary_diagnosis"], found["step_time"]
    bound = [one for one in times["issues"] if one["kind"] == "INPUT_BOUND"]
    silent = first["kind"] == "INSUFFICIENT_STEP_TIME_DATA"
    told = "; ".join(dict.fromkeys(f"{one['status']}: {one['summary']}" for one in [first, *bound]))
    average = times["global"]["average"]
    wait, whole = average.get("input_wait_ms"), average.get("step_time_ms")
    share = wait / whole if whole and wait is not None else None
    limited = True if bound else None if silent else False
    return answer(told, limited, share=share, change=(bound or [first])[0]["action"])


def of_gpuprof(found: dict[str, Any]) -> dict[str, Any]:
    """The answer of `gpuprof insights --json`; only three of its insights say that steps wait."""
    every, summary = found["insights"], found["summary"]
    waits = [one for one in every if WAITS.search(one["title"])]
    gap, step = summary["inter_step_gap_s"], summary["avg_step_s"]
    share = gap / (gap + step) if step and gap is not None else None
    told = "; ".join(one["title"] for one in waits or every)
    limited = bool(waits) if summary["n_steps"] else None
    return answer(told, limited, share=share, change=waits[0]["recommendation"] if waits else "")


def by_fastfeed(folder: Path, script: list[str], *, seconds: float) -> tuple[str, dict[str, Any]]:
    options = ["--seconds", f"{seconds:g}", "--json", "said.json", "--"]
    out = output(folder, [*FASTFEED, "diagnose", *options, *script], seconds=seconds)
    return out, of_fastfeed(json.loads((folder / "said.json").read_text()))


def by_traceml(folder: Path, script: list[str], *, seconds: float) -> tuple[str, dict[str, Any]]:
    command = [str(BIN / "traceml"), "run", script[0], "--args", *script[1:]]
    out = output(folder, command, seconds=seconds)
    summary = next(folder.glob("logs/*/final_summary.json"))
    return out, of_traceml(json.loads(summary.read_text()))


def by_gpuprof(folder: Path, script: list[str], *, seconds: float) -> tuple[str, dict[str, Any]]:
    out = output(folder, [sys.executable, *script], seconds=seconds)
    said = output(folder, [str(BIN / "gpuprof"), "insights", "--json"], seconds=0)
    return out, of_gpuprof(json.loads(said))


TOOLS: dict[str, Callable[..., tuple[str, dict[str, Any]]]] = {
    "fastfeed": by_fastfeed,
    "TraceML": by_traceml,
    "gpuprof": by_gpuprof,
}


def output(folder: Path, command: list[str], *, seconds: float) -> str:
    code, out, errors = run_in(str(folder), command, limit_s=seconds + START_S)
    if code:
        raise Failed(f"exit {code}: {errors.strip()[-160:]}")
    return out


def ran(name: str, variant: str, *, tool: str, seconds: float) -> dict[str, Any]:
    """Run a copy alone or with a tool; return its steps per second and what the tool says."""
    with tempfile.TemporaryDirectory(dir=on_disk()) as place:
        folder = Path(place)
        source = (FOLDER / f"{name}.py").read_text()
        (folder / f"{name}.py").write_text(edited(source, tool, free=variant == "free"))
        (folder / "clock.py").write_text((FOLDER / "clock.py").read_text())
        (folder / "accelerator.py").write_text(MODULE)
        script = [str(folder / f"{name}.py"), "--variant", variant, "--seconds"]
        script += [f"{0.8 * seconds:g}"]  # the rest is the warm-up of its clock
        try:
            if tool:
                out, said = TOOLS[tool](folder, script, seconds=seconds)
            else:
                out, said = output(folder, [sys.executable, *script], seconds=seconds), {}
            rate = last_line(out, "no figures")["steps_per_second"]
            return {**said, "steps_per_second": rate}
        except (Failed, StopIteration, OSError, ValueError, KeyError) as error:
            return {"failed": f"{type(error).__name__}: {error}".replace(place, "")}


def measured(name: str, *, seconds: float, tools: list[str]) -> list[dict[str, Any]]:
    """The rows of a script. It runs alone before and after the tools, so that a drift shows."""
    rows: list[dict[str, Any]] = []
    for variant in VARIANTS:
        runs = [ran(name, variant, tool="", seconds=0.4 * seconds)]
        said = {tool: ran(name, variant, tool=tool, seconds=seconds) for tool in tools}
        runs.append(ran(name, variant, tool="", seconds=0.4 * seconds))
        rates = [run["steps_per_second"] for run in runs]
        rows.append({"script": name, "variant": variant, "rates": rates, "tools": said})
    return [scored(row, free=rows[0]["rates"]) for row in rows]


def scored(row: dict[str, Any], *, free: list[float]) -> dict[str, Any]:
    """Add the truth, and whether each tool is right."""
    lost = 1 - statistics.median(row["rates"]) / statistics.median(free)
    limited, alone = lost >= LIMITED, statistics.median(row["rates"])
    tools = {}
    for tool, said in row["tools"].items():
        beside = said.get("steps_per_second")
        tools[tool] = {**said, "right": said.get("limited") is limited}
        tools[tool]["slowed"] = None if beside is None else 1 - beside / alone
    clear = not CLOSE[0] < lost < CLOSE[1]
    return {**row, "lost": lost, "limited": limited, "clear": clear, "tools": tools}


def begun(
    kind: str, *, watched: float, not_run: dict[str, str]
) -> tuple[list[str], dict[str, Any]]:
    """Return the tools that are installed, and a document without rows."""
    there = {one.metadata["Name"].lower() for one in metadata.distributions()}
    tools = [tool for tool, package in PACKAGES.items() if package in there | {"fastfeed"}]
    known = {tool: PACKAGES[tool] for tool in tools} | {"torch": "torch"}
    return tools, {
        "schema": SCHEMA,
        "kind": kind,
        "plan": {"watched": watched, "limited": LIMITED, "close": CLOSE, "from": REPORTED},
        "machine": machine(),
        "versions": {name: metadata.version(package) for name, package in known.items()},
        "not_installed": sorted(set(PACKAGES) - set(tools)),
        "not_run": not_run,
        "rows": [],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.profilers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="scripts; all, if none is named")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a run, from its first step")
    parser.add_argument("--output", type=Path, default=Path("build/profilers"))
    given = parser.parse_args()
    tools, document = begun(KIND, watched=given.seconds, not_run=NOT_RUN)
    for name in given.names or NAMES:
        document["rows"] += measured(name, seconds=given.seconds, tools=tools)
        write(document, given.output)
        print(name, "done", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
