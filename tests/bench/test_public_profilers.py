"""The copies of public scripts for other profilers, and the table of what these say."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.comparison import FIGURES, public_facts
from bench.public.profilers import MODEL, chosen, trace
from bench.public.recipe import FOURTH_HELD, TEST
from bench.public.recipes import HALVES
from bench.results import read
from bench.scenarios_runs import Failed

SCRIPT = '''"""A script."""
from __future__ import annotations
import torch

def train(model, loader, optimizer):
    for epoch in range(2):
        for batch in loader:
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
        for batch in loader:
            with __import__('traceml_ai').trace_step(__import__('traced_model').model(locals(), globals())):
                if batch is None:
                    continue
                loss = model(batch)
                loss.backward()
                optimizer.step()
        scheduler.step()
'''  # noqa: E501


def test_the_innermost_loop_of_a_training_is_a_step_of_traceml(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    trace(tmp_path, "train.py")
    assert (tmp_path / "train.py").read_text() == TRACED
    (tmp_path / "train.py").write_text("for batch in loader:\n    print(batch)\n")
    with pytest.raises(Failed, match="no loop"):
        trace(tmp_path, "train.py")


def test_the_model_of_a_loop_is_found_by_its_kind() -> None:
    torch = pytest.importorskip("torch")
    space: dict[str, object] = {}
    exec(MODEL, space)
    one, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    trainer = type("Trainer", (), {})()
    trainer.net = other
    found = space["model"]
    assert found({"loader": 1, "net": one}, {"model": other}) is one  # type: ignore[operator]
    assert found({"self": trainer}, {}) is other  # type: ignore[operator]


def test_scripts_are_held_out_and_train_from_an_input() -> None:
    recipes = chosen()
    assert len(recipes) > 15
    assert {recipe.framework for recipe in recipes} == {"torch"}
    assert {HALVES[recipe.name] for recipe in recipes} == {TEST, FOURTH_HELD}


def test_the_page_counts_what_is_in_the_document() -> None:
    document = read(FIGURES / "public_profilers.json")
    facts = public_facts(document)
    assert facts["rows"] == len(document["rows"])
    names = {row["script"] for row in document["rows"]} | set(document["not_run"])
    assert names == {recipe.name for recipe in chosen()}
    for tool in document["rows"][0]["tools"]:
        right = sum(row["tools"][tool]["right"] for row in document["rows"])
        assert f"| {tool} | {right} of {len(document['rows'])} |" in facts["table"]
