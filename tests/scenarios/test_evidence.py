"""The recorded evidence of every labelled script is judged again, and held against its truth."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bench import scenarios
from bench.scenarios_score import steady
from tests.scenarios.labels import LABELS

FOLDER = Path(__file__).parent / "evidence"
MAX_NBYTES = 20_000_000
pytestmark = pytest.mark.slow


@cache
def rows() -> list[dict[str, Any]]:
    """Return every script with its truth, the answer of its day, and the score of today's."""
    return scenarios.replayed(FOLDER)


def scores(name: str) -> list[float]:
    """Return the sizes of an error for scripts whose own rounds agree."""
    found = [row["score"][name] for row in rows() if steady(row["truth"])]
    return [abs(one) for one in found if one is not None]


def test_every_script_has_evidence() -> None:
    assert {row["name"] for row in rows()} == set(LABELS)
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < MAX_NBYTES


def test_verdicts_are_no_worse_than_when_they_were_recorded() -> None:
    told = scenarios.read(FOLDER / "scenarios.json")["rows"]
    right = {row["name"] for row in told if row["score"]["right"]}
    assert [r["name"] for r in rows() if r["name"] in right and not r["score"]["right"]] == []


@pytest.mark.parametrize(
    ("error", "most", "share"),
    [("starvation_points", 5, 0.75), ("speedup_percent", 15, 0.75), ("gain_percent", 20, 0.75)],
)
def test_figures_are_near_the_truth(error: str, most: float, share: float) -> None:
    sizes = scores(error)
    assert sum(size <= most for size in sizes) >= share * len(sizes) > 0


def test_gains_lie_in_their_intervals() -> None:
    inside = scores("gain_inside")
    assert sum(inside) >= 0.9 * len(inside) > 0
