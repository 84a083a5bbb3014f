"""When the benchmark of the builds says that something is slower."""

from __future__ import annotations

import pytest

from bench import check


@pytest.mark.parametrize(
    ("ratios", "lost"),
    [
        ([1.0, 1.1], []),
        ([0.7, 0.8], ["copy"]),
        ([0.7, 0.9], []),  # one round was as fast as the reference
        ([0.84, 0.846], ["copy"]),
        ([0.84, 0.855], []),
    ],
)
def test_a_case_has_lost_if_all_its_rounds_have(
    ratios: list[float], lost: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert check.compared({"copy": ratios}, {"copy": [1.2, 1.0]}) == lost
    assert ("**slower**" in capsys.readouterr().out) == bool(lost)


def test_a_case_that_the_reference_lacks_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.compared({"new": [1.0]}, {}) == []
    assert "not in the reference" in capsys.readouterr().out


@pytest.mark.parametrize(("busy", "counted"), [(0.2, 2), (0.3, 0)])
def test_a_round_beside_other_programs_does_not_count(
    monkeypatch: pytest.MonkeyPatch, busy: float, counted: int
) -> None:
    monkeypatch.setattr(check, "CASES", (check.Case("copy", {}, {}),))
    monkeypatch.setattr(check, "run", lambda spec, timeout_s: {"value": 1.0})
    monkeypatch.setattr(check, "others", lambda: busy)
    assert len(check.measured(0.0)["copy"]) == counted


def test_rounds_alternate_and_a_ratio_is_of_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def run(spec: dict[str, str], *, timeout_s: float) -> dict[str, float]:
        seen.append(spec["peer"])
        return {"value": len(seen) * (2.0 if spec["peer"] == "own" else 1.0)}

    case = check.Case("copy", {"peer": "own"}, {"peer": "yardstick"})
    monkeypatch.setattr(check, "CASES", (case,))
    monkeypatch.setattr(check, "run", run)
    monkeypatch.setattr(check, "others", lambda: 0.0)
    found = check.measured(0.0)
    assert seen == ["own", "yardstick", "yardstick", "own"]
    assert found == {"copy": [2.0 / 2.0, 8.0 / 3.0]}
