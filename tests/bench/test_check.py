"""When the benchmark of the builds says that something is slower."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import check

KNOWN = [1.0, 0.8, 1.2]  # the limit is 0.85


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        pytest.param([1.0] * 3, "", id="as-before"),
        pytest.param([0.86, 0.85, 0.1], "", id="the-median-counts"),
        pytest.param([1.0, 1.0], "not judged: only 2 rounds count", id="too-few"),
        pytest.param([0.5] * 9, "not judged: only 9 rounds count", id="too-few-for-a-loss"),
        pytest.param([0.84] * 10, check.SLOWER, id="slower"),
        pytest.param([0.84] * 9 + [1.2], check.SLOWER, id="slower-but-for-one"),
        pytest.param([0.84] * 8 + [0.85] * 2, check.NOISE, id="noise"),
        pytest.param([0.5] * 18 + [0.9] * 2, check.SLOWER, id="one-of-ten-is-spared"),
        pytest.param([0.5] * 17 + [0.9] * 3, check.NOISE, id="no-more-are"),
    ],
)
def test_the_verdict_about_a_case(ratios: list[float], said: str) -> None:
    assert check.verdict(ratios, KNOWN) == said


@pytest.mark.parametrize(("loss", "share"), [(1.0, 0.0), (0.85, 0.5), (0.67, 0.99)])
def test_rounds_that_vary_hide_no_great_loss_and_make_no_alarm(loss: float, share: float) -> None:
    draws = np.random.default_rng(0)
    known = (1 + 0.1 * draws.standard_normal(12)).tolist()
    runs = loss * (1 + 0.1 * draws.standard_normal((300, 12)))
    slower = [check.verdict(ratios.tolist(), known) == check.SLOWER for ratios in runs]
    if loss == 1.0:
        assert not any(slower)
    elif share > 0.9:
        assert np.mean(slower) > share
    else:
        assert np.mean(slower) < share


@pytest.fixture
def cases(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Four cases."""
    names = ["a", "b", "c", "d"]
    made = tuple(check.Case(name, {"peer": name}, {"peer": "yardstick"}) for name in names)
    monkeypatch.setattr(check, "CASES", made)
    return names


@pytest.mark.parametrize(
    ("found", "code", "told"),
    [
        pytest.param({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}, 0, "", id="all-well"),
        pytest.param({"a": 1.0, "b": 0.5, "c": 1.0, "d": 1.0}, 1, "15% slower: b\n", id="lost"),
        pytest.param({"a": 1.0, "b": 1.0}, 0, "NOT JUDGED: 2 of 4: c, d\n", id="half-judged"),
        pytest.param({"a": 1.0}, 2, "NOT JUDGED: 3 of 4: b, c, d\n", id="less-than-half"),
        pytest.param({"a": 0.5}, 1, "15% slower: a\n", id="lost-among-few"),
    ],
)
def test_the_cases_that_counted_are_judged(
    found: dict[str, float],
    code: int,
    *,
    told: str,
    cases: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    ratios = {name: [found[name]] * 10 if name in found else [0.1] * 2 for name in cases}
    assert check.judged(ratios, dict.fromkeys(cases, KNOWN)) == code
    said = capsys.readouterr()
    assert told in said.err
    assert ("**slower**" in said.out) == (code == 1)
    assert "| a | 1.00 (0.80-1.20) |" in said.out
    assert said.out.count("| 29% |") == 4  # the best round of the reference is 1.2


def test_what_cannot_be_judged_is_said(
    cases: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert check.judged({"a": [1.0] * 3, "b": [1.0] * 3}, {"a": KNOWN}) == 2
    told = capsys.readouterr()
    assert "not judged: not in the reference" in told.out
    assert told.out.count("not judged: its yardstick is not installed") == 2
    assert "NOT JUDGED: 3 of 4: b, c, d" in told.err


@pytest.mark.parametrize(
    ("busy", "counted"),
    [
        pytest.param([0.2, 0.2], 1, id="quiet"),
        pytest.param([0.3, 0.2], 0, id="before"),
        pytest.param([0.2, 0.3], 0, id="after"),
    ],
)
def test_a_round_beside_other_programs_does_not_count(
    busy: list[float], counted: int, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = itertools.cycle(busy)
    monkeypatch.setattr(check, "CASES", (check.Case("copy", {}, {}),))
    monkeypatch.setattr(check, "run", lambda spec, timeout_s: {"value": 1.0})
    monkeypatch.setattr(check, "others", lambda: next(looks))
    found = check.measured(0.0, {"copy": KNOWN})["copy"]
    assert bool(found) == bool(counted)


def test_rounds_alternate_and_a_ratio_is_of_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def run(spec: dict[str, str], *, timeout_s: float) -> dict[str, float]:
        seen.append(spec["peer"])
        return {"value": len(seen) * (2.0 if spec["peer"] == "own" else 1.0)}

    case = check.Case("copy", {"peer": "own"}, {"peer": "yardstick"})
    monkeypatch.setattr(check, "CASES", (case,))
    monkeypatch.setattr(check, "run", run)
    monkeypatch.setattr(check, "others", lambda: 0.0)
    found = check.measured(0.0, {"copy": KNOWN})
    assert seen == ["own", "yardstick", "yardstick", "own", "own", "yardstick"]
    assert found == {"copy": [2.0 / 2.0, 8.0 / 3.0, 10.0 / 6.0]}


def test_a_case_goes_on_until_its_loss_is_sure(
    cases: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = {"b": 0.5, "d": 0.8}
    monkeypatch.setattr(
        check, "run", lambda spec, timeout_s: {"value": rates.get(spec["peer"], 1.0)}
    )
    monkeypatch.setattr(check, "others", lambda: 0.0)
    found = check.measured(0.0, dict.fromkeys(cases, KNOWN))
    assert {name: len(ratios) for name, ratios in found.items()} == {
        "a": 3,
        "b": 10,
        "c": 3,
        "d": 10,
    }


def test_a_machine_that_is_never_quiet_ends(
    cases: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "others", lambda: 1.0)
    assert check.measured(0.0, {}) == {name: [] for name in cases}


@pytest.mark.parametrize("option", ["--record", "--add"])
def test_a_reference_has_ten_rounds_of_every_case(
    option: str, tmp_path: Path, *, cases: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "check.json"
    before: dict[str, Any] = {"a": [9.0]}
    place.write_text(json.dumps(before))
    monkeypatch.setattr(check, "REFERENCE", place)
    monkeypatch.setattr(check, "run", lambda spec, timeout_s: {"value": 1.0})
    monkeypatch.setattr(sys, "argv", ["check", "--seconds", "0", option])

    monkeypatch.setattr(check, "others", lambda: 1.0)
    with pytest.raises(SystemExit) as ended:
        check.main()
    assert ended.value.code == 2
    assert json.loads(place.read_text()) == before

    monkeypatch.setattr(check, "others", lambda: 0.0)
    with pytest.raises(SystemExit) as ended:
        check.main()
    assert ended.value.code == 0
    ten = {name: [1.0] * 10 for name in cases}
    assert json.loads(place.read_text()) == ten | (
        {"a": [9.0, *ten["a"]]} if "add" in option else {}
    )
