"""The recorded evidence of public scripts is judged again, and held against their truths."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.accuracy import OWN, PUBLIC, said_again
from bench.comparison import FIGURES
from bench.public.command import read
from bench.public.recipes import HALVES, RECIPES
from bench.public.score import score

MAX_NBYTES = 20_000_000
RIGHT, UNNEEDED, NEAR = 0.69, 0.05, 0.75  # shares of the reports
ROWS = read(PUBLIC)
MET = [recipe for recipe in RECIPES if recipe.name in ROWS]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scores() -> list[dict[str, Any]]:
    """Return the score of today's answer to each report of each script."""
    found = []
    for recipe in MET:
        row = ROWS[recipe.name]
        for turn, recorded in enumerate(row.get("said", [])):
            if "failed" in recorded:
                continue
            said = said_again(recipe, turn)
            json.dumps(said, allow_nan=False)
            found.append({"name": recipe.name, **score(recipe, row["truth"], said)})
    return found


def test_every_script_has_two_reports_beside_its_truth() -> None:
    met = ("test", "second", "third", "fourth", "fourth-held")
    assert set(ROWS) == {name for name, half in HALVES.items() if half in met}
    assert {len(row["said"]) for row in ROWS.values()} == {2}
    assert sum(path.stat().st_size for path in PUBLIC.rglob("*.*")) < MAX_NBYTES


def test_verdicts_are_no_worse_than_when_they_were_recorded(scores: list[dict[str, Any]]) -> None:
    assert sum(one["right"] for one in scores) >= RIGHT * len(scores) > 0


def test_nearly_nobody_is_told_to_change_an_input_without_need(
    scores: list[dict[str, Any]],
) -> None:
    told = [one["name"] for one in scores if one["told"]]
    assert len(told) <= UNNEEDED * len(scores), told


def test_gains_of_a_free_input_are_near_the_truth(scores: list[dict[str, Any]]) -> None:
    found = [abs(one["speedup"]) for one in scores if one["fine"] and one["speedup"] is not None]
    assert sum(one <= 0.15 for one in found) >= NEAR * len(found) > 0


def test_the_page_has_the_accuracy_of_today(scores: list[dict[str, Any]]) -> None:
    """`python -m bench.accuracy` and `make figures` bring it up to date."""
    rows = json.loads((FIGURES / "accuracy.json").read_text())["rows"]
    told = [(row["script"], row["verdict"], row["right"]) for row in rows if row["set"] != OWN]
    assert told == [(one["name"], one["verdict"], one["right"]) for one in scores]
