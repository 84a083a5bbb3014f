"""The copies of public scripts for other profilers, and the table of what these say."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from bench.comparison import FIGURES, common_facts
from bench.public.profilers import LINES, chosen, trace
from bench.public.recipe import FOURTH_HELD, TEST
from bench.public.recipes import HALVES
from bench.results import read
from bench.scenarios_runs import Failed

SCRIPT = '''"""A script."""
from __future__ import annotations
import torch

def train(model, loader, optimizer):
    for epoch in range(2):
        for n, batch in enumerate(loader):
            if batch is None:
                continue
            loss = model(batch)
            loss.backward()
            optimizer.step()
        scheduler.step()
'''
TRACED = '''"""A script."""
from __future__ import annotations
import traceml_ai
traceml_ai.init(mode='auto')
import torch

def train(model, loader, optimizer):
    for epoch in range(2):
        for n, batch in enumerate(__import__('traced_lines').fetched(loader)):
            with STEP:
                if batch is None:
                    continue
                loss = model(batch)
                loss.backward()
                optimizer.step()
        scheduler.step()
'''.replace(
    "STEP",
    "__import__('traceml_ai').trace_step(__import__('traced_lines').model(locals(), globals()))",
)


def test_the_innermost_loop_of_a_training_is_a_step_of_traceml(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (tmp_path / "old.py").write_text("print loss.backward()")  # of Python 2
    trace(tmp_path, script)
    assert script.read_text() == TRACED
    script.write_text("for batch in loader:\n    print(batch)\n")
    with pytest.raises(Failed, match="no loop"):
        trace(tmp_path, script)


def test_what_the_lines_get_is_found_by_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    traceml = ModuleType("traceml_ai")
    traceml.wrap_dataloader_fetch = lambda source: ("fetched", source)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "traceml_ai", traceml)
    space: dict[str, Any] = {}
    exec(LINES, space)
    one, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    trainer = SimpleNamespace(net=other)
    assert space["model"]({"loader": 1, "net": one}, {"model": other}) is one
    assert space["model"]({"self": trainer}, {}) is other
    made = iter(())
    assert space["fetched"](range(3)) == range(3)
    assert space["fetched"](made) == ("fetched", made)


def test_scripts_are_held_out_and_train_from_an_input() -> None:
    recipes = chosen()
    assert len(recipes) > 15
    assert {recipe.framework for recipe in recipes} == {"torch"}
    assert {HALVES[recipe.name] for recipe in recipes} == {TEST, FOURTH_HELD}


def test_the_page_counts_what_is_in_the_document() -> None:
    document = read(FIGURES / "public_profilers.json")
    facts = common_facts(document)
    assert facts["rows"] == len(document["rows"])
    names = {row["script"] for row in document["rows"]} | set(document["not_run"])
    assert names == {recipe.name for recipe in chosen()}
    for tool in document["rows"][0]["tools"]:
        told = [row["tools"][tool] for row in document["rows"]]
        ran = [said["right"] for said in told if "failed" not in said]
        assert f"| {tool} | {sum(ran)} of {len(ran)} |" in facts["table"]
