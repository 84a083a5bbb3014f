"""The recorded evidence of public scripts is judged again, and held against their truths."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bench.public.command import evidence_path, read
from bench.public.recipes import HALVES, RECIPES
from bench.public.score import score
from fastfeed.diagnose.evidence_file import read_evidence
from fastfeed.diagnose.judge.judgement import judge
from fastfeed.diagnose.report.json import json_of

FOLDER = Path(__file__).parent / "public"
MAX_NBYTES = 20_000_000
ROWS = read(FOLDER)
MET = [recipe for recipe in RECIPES if recipe.name in ROWS]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scores() -> list[dict[str, Any]]:
    """Return the score of today's answer to each report of each script."""
    found = []
    for recipe in MET:
        row = ROWS[recipe.name]
        for turn, recorded in enumerate(row["said"]):
            if "failed" in recorded:
                continue
            kept = read_evidence(evidence_path(FOLDER, recipe.name, turn))
            said = json_of(judge(kept.evidence, script=kept.script, died=kept.died))
            json.dumps(said, allow_nan=False)
            found.append({"name": recipe.name, **score(recipe, row["truth"], said)})
    return found


def test_every_script_has_two_reports_beside_its_truth() -> None:
    assert set(ROWS) == {
        name for name, half in HALVES.items() if half in ("test", "second", "third")
    }
    assert {len(row["said"]) for row in ROWS.values()} == {2}
    assert sum(path.stat().st_size for path in FOLDER.rglob("*.*")) < MAX_NBYTES


def test_answers_are_no_worse_than_when_they_were_recorded(scores: list[dict[str, Any]]) -> None:
    assert sum(one["right"] for one in scores) >= 0
    told = [one["name"] for one in scores if one["told"]]
    assert len(told) <= 99, Counter(told)


def test_nothing_that_is_advised_for_sure_loses(scores: list[dict[str, Any]]) -> None:
    assert sum(len(one["loses"]) for one in scores) <= 99
