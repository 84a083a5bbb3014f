"""The copies of scripts for other profilers, and what their summaries say."""

from __future__ import annotations

import ast
import copy
from typing import Any

import pytest

from bench import comparison
from bench.comparison import FIGURES
from bench.profilers import (
    MODULE,
    NAMES,
    PACKAGES,
    VARIANTS,
    edited,
    of_fastfeed,
    of_gpuprof,
    of_traceml,
    scored,
)
from bench.results import read
from bench.scenarios_runs import FOLDER

SCRIPT = """\
import time

from clock import arguments

args = arguments()
while True:
    for _batch in batches(1):
        time.sleep(0.012)  # forward and backward on the accelerator
        if over():
            break
report()
"""
HEAD = """\
import time

from clock import arguments

args = arguments()
"""
TRACEML = """
import traceml_ai as traceml

traceml.init(mode="auto")
from accelerator import model, optimizer
while True:
    for _batch in traceml.wrap_dataloader_fetch(batches(1)):
        with traceml.trace_step(model):
            optimizer.zero_grad(set_to_none=True)
            model(0.012).backward()
            optimizer.step()
        if over():
            break
report()
"""
GPUPROF = """
import gpuprof
from accelerator import model, optimizer
with gpuprof.profile("training"):
    while True:
        for _batch in batches(1):
            optimizer.zero_grad(set_to_none=True)
            model(0.012).backward()
            optimizer.step()
            if over():
                break
report()
"""


def test_a_copy_has_the_lines_of_a_tool() -> None:
    assert edited(SCRIPT, "TraceML", free=True) == HEAD + TRACEML
    wrapped = "traceml.wrap_dataloader_fetch(batches(1))"
    assert edited(SCRIPT, "TraceML") == HEAD + TRACEML.replace(wrapped, "batches(1)")
    assert edited(SCRIPT, "gpuprof") == HEAD + GPUPROF
    assert edited(SCRIPT) == edited(SCRIPT, "fastfeed")
    assert "traceml" not in edited(SCRIPT)


@pytest.mark.parametrize("name", NAMES)
def test_every_script_can_be_copied(name: str) -> None:
    source = (FOLDER / f"{name}.py").read_text()
    for tool in ("", *PACKAGES):
        for free in (False, True):
            assert "model(0." in ast.unparse(ast.parse(edited(source, tool, free=free)))
    ast.parse(MODULE)


def fastfeed(verdict: str | None, *changes: dict[str, Any]) -> dict[str, Any]:
    abstained = None if verdict else "no steps"
    found = {"verdict": verdict, "headline": "50 steps/s", "abstained": abstained}
    return {**found, "lost_to_input": 0.4, "recommendations": list(changes)}


def test_the_answer_of_fastfeed() -> None:
    change = {"change": "more threads", "predicted_speedup": 1.5}
    said = of_fastfeed(fastfeed("input.latency", change))
    assert (said["limited"], said["share"]) == (True, 0.4)
    assert (said["change"], said["gain"]) == ("more threads", 1.5)
    assert of_fastfeed(fastfeed("step.bound"))["limited"] is False
    assert of_fastfeed(fastfeed(None))["limited"] is None


def traceml(*kinds: str) -> dict[str, Any]:
    issues = [
        {"kind": kind, "status": kind, "summary": "Why.", "action": f"Mend {kind}."}
        for kind in kinds
    ]
    average = {"input_wait_ms": 5.0, "step_time_ms": 20.0}
    times = {"issues": issues, "global": {"average": average}}
    return {"primary_diagnosis": issues[0], "step_time": times}


def test_the_answer_of_traceml() -> None:
    said = of_traceml(traceml("RESIDUAL_HEAVY", "INPUT_BOUND"))
    assert (said["limited"], said["share"]) == (True, 0.25)
    assert (said["change"], said["gain"]) == ("Mend INPUT_BOUND.", None)
    assert of_traceml(traceml("COMPUTE_BOUND"))["limited"] is False
    silent = traceml("INSUFFICIENT_STEP_TIME_DATA")
    silent["step_time"]["global"]["average"] = {}
    said = of_traceml(silent)
    assert (said["limited"], said["share"]) == (None, None)


def gpuprof(*titles: str, steps: int = 100) -> dict[str, Any]:
    summary = {"n_steps": steps, "avg_step_s": 0.03, "inter_step_gap_s": 0.01}
    insights = [{"title": title, "recommendation": f"Mend {title}"} for title in titles]
    return {"summary": summary, "insights": insights}


def test_the_answer_of_gpuprof() -> None:
    stall = "33% of step time waiting on the loader (inter-step gap)"
    said = of_gpuprof(gpuprof("Estimated cost: $0.14", stall))
    assert (said["limited"], said["share"], said["said"]) == (True, 0.25, stall)
    assert (said["change"], said["gain"]) == (f"Mend {stall}", None)
    assert of_gpuprof(gpuprof("No major bottlenecks detected"))["limited"] is False
    assert of_gpuprof(gpuprof("Estimated cost: $0.14", steps=0))["limited"] is None


@pytest.mark.parametrize(
    ("rate", "limited", "clear"),
    [
        pytest.param(50, True, True, id="limited"),
        pytest.param(88, True, False, id="hardly"),
        pytest.param(92, False, False, id="hardly-not"),
        pytest.param(101, False, True, id="not"),
    ],
)
def test_the_score_of_a_row(rate: float, limited: bool, clear: bool) -> None:
    tools = {
        "TraceML": {"limited": limited, "steps_per_second": rate / 2},
        "gpuprof": {"failed": ""},
    }
    row = scored({"rates": [rate, rate], "tools": tools}, free=[100, 100])
    assert (row["limited"], row["clear"]) == (limited, clear)
    assert (row["tools"]["TraceML"]["right"], row["tools"]["TraceML"]["slowed"]) == (True, 0.5)
    assert (row["tools"]["gpuprof"]["right"], row["tools"]["gpuprof"]["slowed"]) == (False, None)


def test_the_table_follows_from_the_document() -> None:
    document = copy.deepcopy(read(FIGURES / "profilers.json"))
    assert {row["variant"] for row in document["rows"]} <= set(VARIANTS)
    for row in document["rows"]:
        free = next(
            one["rates"]
            for one in document["rows"]
            if (one["script"], one["variant"]) == (row["script"], "free")
        )
        assert scored(row, free=free) == row
    tools = list(document["rows"][0]["tools"])
    assert comparison.profiler_table(document).count("\n") == 1 + len(tools)

    for row in document["rows"]:  # one that always names a change, and is never right
        said = {"right": False, "limited": not row["limited"], "change": "any", "gain": 2.0}
        row["tools"] = {"one": said | {"slowed": 0.01}}
    limited = sum(row["limited"] for row in document["rows"])
    told = f"| {limited} of {limited} | 0 of {limited} | 0 of {limited} | 1 (1 to 1) % |"
    assert comparison.profiler_table(document).endswith(told)

    for row in document["rows"]:
        row["tools"] = {"one": {"right": True, "limited": row["limited"], "slowed": 0.01}}
    told = f"{len(document['rows'])} of {len(document['rows'])}"
    assert f"| one | {told} |" in comparison.profiler_table(document)
    assert comparison.profiler_errors(document) == "- **one** is wrong about none."


def told_row(script: str, variant: str, *, said: str, right: bool) -> dict[str, Any]:
    answers = {"fastfeed": {"right": right, "said": f"{said}: 5 steps/s"}}
    answers |= {"TraceML": {"right": True}, "gpuprof": {"right": variant == "free"}}
    return {"script": script, "variant": variant, "limited": variant != "free", "tools": answers}


def test_what_fastfeed_is_wrong_about_is_told() -> None:
    rows = [
        told_row("audio_loader", "slow", said="input.latency", right=True),
        told_row("fields_loader", "slow", said="external.noise", right=False),
        told_row("fields_loader", "fixed", said="external.noise", right=False),
        told_row("fields_loader", "free", said="step.bound", right=True),
    ]
    losses = comparison.profiler_losses({"rows": rows})
    assert losses == "Right more often than fastfeed (2 of 4): TraceML (4)"
    assert comparison.profiler_kinds({"rows": rows}) == (
        "1 of the 2 slow variants that lose as much, and another one for `fields_loader` "
        "(`external.noise` in place of `input.cpu`)"
    )
    assert comparison.profiler_kinds({"rows": rows[:1]}) == (
        "1 of the 1 slow variants that lose as much"
    )
    assert comparison.profiler_losses({"rows": rows[:1]}) == ""
    facts = comparison.profiler_facts(read(FIGURES / "profilers.json"))
    assert facts["scripts"] <= facts["of_scripts"] == len(NAMES)
    assert "TraceML and gpuprof observe PyTorch only" in facts["not_run"]
