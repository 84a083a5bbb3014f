"""The recorded evidence of every labelled script is judged again, and held against its truth."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import scenarios
from bench.scenarios_score import steady
from tests.scenarios.labels import LABELS

FOLDER = Path(__file__).parent / "evidence"
MAX_NBYTES = 20_000_000
TOLD = {row["name"]: row for row in scenarios.read(FOLDER / "scenarios.json")["rows"]}
Score = Callable[[str], dict[str, Any]]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def score(tmp_path_factory: pytest.TempPathFactory) -> Score:
    """Return the score of today's answer, made once for all workers of the tests: it takes a
    second."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder

    def of(name: str) -> dict[str, Any]:
        path = folder / f"{name}.json"
        if not path.exists():
            part = path.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(scenarios.judged_again(TOLD[name], FOLDER)["score"]))
            part.replace(path)
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    return of


def sizes(error: str, score: Score) -> list[float]:
    """Return the sizes of an error for scripts whose own rounds agree."""
    found = [score(name)[error] for name, row in TOLD.items() if steady(row["truth"])]
    return [abs(one) for one in found if one is not None]


def test_every_script_has_evidence() -> None:
    assert set(TOLD) == set(LABELS)
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < MAX_NBYTES


@pytest.mark.parametrize("name", TOLD)
def test_a_verdict_is_no_worse_than_when_it_was_recorded(name: str, score: Score) -> None:
    assert score(name)["right"] >= TOLD[name]["score"]["right"]


@pytest.mark.parametrize(
    ("error", "most", "share"),
    [("starvation_points", 5, 0.75), ("speedup_percent", 15, 0.75), ("gain_percent", 20, 0.75)],
)
def test_figures_are_near_the_truth(error: str, most: float, share: float, score: Score) -> None:
    found = sizes(error, score)
    assert sum(size <= most for size in found) >= share * len(found) > 0


def test_gains_lie_in_their_intervals(score: Score) -> None:
    inside = sizes("gain_inside", score)
    assert sum(inside) >= 0.9 * len(inside) > 0
