"""`fastfeed compare` and the gate: what is called a difference, and what is refused."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from fastfeed import OptionError
from fastfeed.benchmark.compare import (
    FASTER,
    NO_DIFFERENCE,
    NO_SPREAD,
    SLOWER,
    compare,
    lines_of,
    ratio,
)
from fastfeed.benchmark.summary import check_au
from fastfeed.cli import main
from fastfeed.model.students_t import students_t
from fastfeed.model.workload import Producers
from tests.benchmark.test_report import WAITS, sweep_of

rates = st.lists(st.floats(0.1, 1e5), min_size=2, max_size=6).map(tuple)
pairs = st.lists(st.tuples(rates, rates), min_size=1, max_size=4)
Pair = tuple[tuple[float, ...], tuple[float, ...]]
THREE = (99.0, 100.0, 101.0)


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062), (2, 4.3027), (4, 2.7764), (10, 2.2281), (1e6, 1.96)]
)
def test_students_quantiles_are_those_of_the_tables(freedom: float, quantile: float) -> None:
    assert students_t(freedom) == pytest.approx(quantile, rel=1e-4)


@given(st.lists(rates, min_size=1, max_size=4))
def test_the_same_on_both_sides_is_no_difference(sides: list[tuple[float, ...]]) -> None:
    found = ratio([(side, side) for side in sides])
    assert found.verdict == NO_DIFFERENCE
    assert found.value == pytest.approx(1)


@given(
    st.floats(1, 1000), st.floats(1.1, 5), st.lists(st.floats(-0.01, 0.01), min_size=6, max_size=6)
)
def test_a_shift_beyond_the_spread_is_found(rate: float, factor: float, noise: list[float]) -> None:
    before = tuple(rate * (1 + n) for n in noise[:3])
    after = tuple(rate * factor * (1 + n) for n in noise[3:])
    assert ratio([(before, after)]).verdict == FASTER
    assert ratio([(after, before)]).verdict == SLOWER


@given(pairs, st.randoms(use_true_random=False))
def test_the_order_of_repeats_and_settings_does_not_matter(
    given: list[Pair], chance: random.Random
) -> None:
    shuffled = [tuple(tuple(chance.sample(side, len(side))) for side in pair) for pair in given]
    chance.shuffle(shuffled)
    one, other = ratio(given), ratio(shuffled)
    assert (one.value, one.low, one.high) == pytest.approx(
        (other.value, other.low, other.high), rel=1e-6
    )


@given(pairs, st.floats(0.5, 2))
def test_sides_swapped_are_the_inverse_and_a_scale_changes_nothing(
    given: list[Pair], scale: float
) -> None:
    one = ratio(given)
    back = ratio([(after, before) for before, after in given])
    assert (1 / one.value, 1 / one.high, 1 / one.low) == pytest.approx(
        (back.value, back.low, back.high), rel=1e-6
    )
    scaled = ratio([tuple(tuple(scale * r for r in side) for side in pair) for pair in given])
    assert scaled.value == pytest.approx(one.value, rel=1e-6)
    assert one.low <= one.value <= one.high


def test_chance_is_called_a_difference_once_in_twenty() -> None:
    chance = random.Random(0)

    def three() -> tuple[float, ...]:
        return tuple(100 * math.exp(chance.gauss(0, 0.03)) for _ in range(3))

    verdicts = [ratio([(three(), three())]).verdict for _ in range(400)]
    assert 0 < len([v for v in verdicts if v != NO_DIFFERENCE]) < 400 * 0.08


def test_one_run_has_no_spread() -> None:
    assert ratio([((1.0,), (2.0, 2.1))]).verdict == NO_SPREAD


def bench_json(
    path: Path, settings: dict[tuple[int, int], tuple[float, ...]], **other: Any
) -> Path:
    rows = [
        {
            "kind": "fastfeed",
            "processes": p,
            "threads": t,
            "windows": [{"steps": 100, "wall_s": 100 / r} for r in rates],
        }
        for (p, t), rates in settings.items()
    ]
    machine = {"processor": "x", "cores": 2, "gpu": None, "kernel": "6"}
    found = {
        "schema": 4,
        "workload": "w",
        "data": "d",
        "consumer": "sim:20ms",
        "machine": machine,
        "settings": rows,
    }
    path.write_text(json.dumps({**found, "plan": {"batch_size": 32}, **other}))
    return path


def diagnosis_json(
    path: Path, rate: float | None, spread: tuple[float, float], **other: Any
) -> Path:
    found = {
        "schema": 1,
        "verdict": "input.gil",
        "causes": [],
        "starvation": 0.5,
        "steps_per_second": rate,
    }
    path.write_text(json.dumps({**found, "figures": {"steps_per_second_range": spread}, **other}))
    return path


def test_settings_are_told_apart_and_the_whole_is_their_mean(tmp_path: Path) -> None:
    before = bench_json(tmp_path / "a.json", {(0, 1): THREE, (2, 4): THREE, (0, 9): THREE})
    slow = tuple(r / 2 for r in THREE)
    after = bench_json(
        tmp_path / "b.json",
        {(2, 4): slow, (0, 1): THREE},
        machine={"processor": "y"},
        consumer="none",
    )
    found = compare(before, after)
    assert [(line.name, line.ratio.verdict) for line in found.lines] == [
        ("1 thread", NO_DIFFERENCE),
        ("2 processes x 4 threads", SLOWER),
        ("all settings", SLOWER),
    ]
    assert found.lines[-1].ratio.value == pytest.approx(0.5**0.5)
    notes = " ".join(found.notes)
    for part in ("processor: x against y", "different consumer", "only before: 9 threads"):
        assert part in notes
    assert any("0.500x (0.4" in line and line.endswith(SLOWER) for line in lines_of(found))


def test_single_runs_are_compared_with_a_warning(tmp_path: Path) -> None:
    before, after = (
        bench_json(tmp_path / n, {(0, 1): (rate,)}) for n, rate in (("a", 10.0), ("b", 20.0))
    )
    found = compare(before, after)
    assert found.lines[0].ratio.verdict == NO_SPREAD and found.lines[
        0
    ].ratio.value == pytest.approx(2)
    assert not found.slower and "--repeats" in found.notes[-1]


def test_diagnoses_are_compared_by_the_ranges_that_they_hold(tmp_path: Path) -> None:
    before = diagnosis_json(tmp_path / "a", 50.0, (48.0, 52.0), script="train.py")
    after = diagnosis_json(
        tmp_path / "b", 100.0, (96.0, 104.0), script="other.py", verdict="step.bound", starvation=0
    )
    found = compare(before, after)
    assert found.lines[0].ratio.verdict == FASTER and found.lines[0].ratio.low == pytest.approx(
        96 / 52
    )
    assert found.changes == ("verdict: input.gil -> step.bound", "starvation: 50.0% -> 0.0%")
    assert found.notes == ("different script: train.py against other.py",)
    assert compare(before, before).lines[0].ratio.verdict == NO_DIFFERENCE


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot read"),
        ("{", "no JSON"),
        ("[1]", "neither"),
        ('{"settings": 1}', "neither"),
        ('{"schema": 1, "settings": [], "workload": "w"}', "schema 1 .* compares schema 4"),
        ('{"schema": 4, "settings": [], "workload": "w"}', "no setting is in both"),
        ('{"schema": 4, "settings": [{"kind": "x"}], "workload": "w"}', "lacks"),
        (
            '{"schema": 4, "workload": "w", "settings": '
            '[{"kind": "x", "threads": 1, "processes": 0, "windows": []}]}',
            "lacks",
        ),
        ('{"schema": 9, "verdict": null, "causes": []}', "schema 9"),
        ('{"schema": 1, "verdict": null, "causes": []}', "of one kind"),
    ],
)
def test_what_cannot_be_compared_is_refused(text: str | None, says: str, tmp_path: Path) -> None:
    before, after = bench_json(tmp_path / "a.json", {(0, 1): THREE}), tmp_path / "b.json"
    if text is not None:
        after.write_text(text)
    with pytest.raises(OptionError, match=says):
        compare(before, after)


def test_a_diagnosis_that_abstained_has_no_speed(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="abstained"):
        compare(
            diagnosis_json(tmp_path / "a", None, (1, 1)),
            diagnosis_json(tmp_path / "b", 1.0, (1, 1)),
        )


def test_the_command_fails_a_build_that_is_slower_and_only_if_asked(tmp_path: Path) -> None:
    fast = str(bench_json(tmp_path / "a.json", {(0, 1): THREE, (0, 2): THREE}))
    slow = str(
        bench_json(tmp_path / "b.json", {(0, 1): THREE, (0, 2): tuple(r / 2 for r in THREE)})
    )
    for arguments, code in (
        ([fast, slow, "--fail-if-slower"], 1),
        ([fast, slow], 0),
        ([slow, fast, "--fail-if-slower"], 0),
        ([fast, fast, "--fail-if-slower"], 0),
        ([fast, fast + "x"], 2),
    ):
        assert CliRunner().invoke(main, ["compare", *arguments]).exit_code == code


def test_the_gate_takes_the_best_setting_and_names_the_knob() -> None:
    sweep = sweep_of(
        rates={1: 20.0, 4: 80.0, Producers(1, 2): 40.0}, step_s=0.01, producer=WAITS, wait=0.2
    )
    passed, failed = check_au(sweep, 80), check_au(sweep, 80.5)
    assert passed == (
        True,
        "AU 80.0 % with 4 threads, the best of 3 settings; needed 80 %: passed.",
    )
    assert not failed[0]
    assert "needed 80.5 %: FAILED. Make batches cheaper, or raise --threads" in failed[1]
    assert "5 producers are the least" in failed[1]


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["sleep:1ms", "sim:4ms", "1"], 0, "passed"),
        (["sleep:30ms", "sim:1ms", "90"], 1, "FAILED"),
        (["sleep:1ms", "none", "90"], 2, "--consumer sim:20ms"),
        (["sleep:1ms", "sim:4ms", "0"], 2, "--assert-au"),
        (["sleep:1ms", "sim:4ms", "101"], 2, "--assert-au"),
        (["sleep:1ms", "sim:4ms", "much"], 2, "--assert-au"),
    ],
)
def test_bench_ends_with_the_gate(
    options: list[str], code: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastfeed.benchmark.sweep.PROFILE_S", 0.05)
    monkeypatch.setattr("fastfeed.benchmark.measure.STEP_WARMUP", 4)
    workload, consumer, percent = options
    plan = ["--threads", "1", "--steps", "20", "--repeats", "1"]
    arguments = ["--workload", workload, "--consumer", consumer, "--assert-au", percent, *plan]
    done = CliRunner().invoke(main, ["bench", *arguments])
    assert done.exit_code == code
    assert says in (done.stderr if code == 2 else done.stdout.splitlines()[-1])
