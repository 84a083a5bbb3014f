from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench.public.prepare import Unprepared, prepare
from bench.public.recipe import (
    DEVELOPMENT,
    FOURTH,
    FOURTH_HELD,
    SECOND,
    TEST,
    THIRD,
    UNMET,
    Edit,
    Recipe,
    Variant,
    after,
    halves,
    without,
)
from bench.public.recipes import COMMITS, FIRST, FOURTH_RECIPES, HALVES, LATER, RECIPES

SCRIPT = "for i in range(3):\n    step(i)\n    save(i)\n"


@pytest.fixture
def checkouts(tmp_path: Path) -> Path:
    folder = tmp_path / "checkouts" / "someone+something" / "code"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT)
    return tmp_path / "checkouts"


def recipe(**given: object) -> Recipe:
    return Recipe("one", "numpy", "image", "someone/something", "code/train.py", **given)  # type: ignore[arg-type]


def test_every_script_has_a_name_of_its_own_and_a_commit() -> None:
    assert len({one.name for one in RECIPES}) == len(RECIPES) >= 50
    assert {one.repository for one in RECIPES} == set(COMMITS)
    assert len({one.partition("@")[0] for one in COMMITS}) >= 10
    assert all(re.fullmatch("[0-9a-f]{40}", commit) for commit, _ in COMMITS.values())


@pytest.mark.parametrize(
    ("recipes", "one", "other"), [(FIRST, DEVELOPMENT, TEST), (FOURTH_RECIPES, FOURTH, FOURTH_HELD)]
)
def test_every_framework_is_in_both_halves(
    recipes: tuple[Recipe, ...], one: str, other: str
) -> None:
    for framework in {recipe.framework for recipe in recipes}:
        names = [HALVES[recipe.name] for recipe in recipes if recipe.framework == framework]
        assert set(names) <= {one, other}
        assert abs(names.count(one) - names.count(other)) <= 1


def test_new_scripts_at_the_end_move_none() -> None:
    more = [replace(FIRST[0], name=f"new_{i}") for i in range(4)]
    assert halves(FIRST).items() <= halves([*FIRST, *more]).items()
    for half, recipes in LATER.items():
        assert {HALVES[one.name] for one in recipes} <= {half, UNMET}
    assert {SECOND, THIRD, UNMET} <= set(HALVES.values())


def test_steps_are_counted_only_for_the_truth(checkouts: Path, tmp_path: Path) -> None:
    found = recipe(count=r"step\(i\)")
    alone = prepare(found, "now", checkouts=checkouts, output=tmp_path)
    assert (alone.folder / "train.py").read_text() == SCRIPT
    timing = {"warmup": 1.0, "seconds": 2.0}
    counted = prepare(found, "now", checkouts=checkouts, output=tmp_path, timing=timing)
    lines = (counted.folder / "train.py").read_text().splitlines()
    assert lines[2] == "    __import__('tally').tick()"


def test_a_variant_is_a_substitution(checkouts: Path, tmp_path: Path) -> None:
    found = recipe(quiet=Variant((without(r"save\("),)), edits=(Edit("range.3.", "range(9)"),))
    quiet = prepare(found, "quiet", checkouts=checkouts, output=tmp_path)
    text = (quiet.folder / "train.py").read_text()
    assert text == "for i in range(9):\n    step(i)\n    pass\n"


def test_a_substitution_that_matches_nothing_is_refused(checkouts: Path, tmp_path: Path) -> None:
    found = recipe(edits=(after("never"),))
    with pytest.raises(Unprepared, match="nothing matches"):
        prepare(found, "now", checkouts=checkouts, output=tmp_path)


def test_a_missing_checkout_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unprepared, match=r"no code/train\.py"):
        prepare(recipe(), "now", checkouts=tmp_path, output=tmp_path)
