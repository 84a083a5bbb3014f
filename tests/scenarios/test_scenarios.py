"""The labelled scripts run, in every variant, and their labels are complete; what bench/scenarios
makes of figures."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import scenarios, scenarios_score
from bench.scenarios_runs import Failed, last_line, summary
from fastfeed.diagnose.diagnosis import CODES
from tests.scenarios.labels import LABELS, Label

FOLDER = Path(__file__).parent
HELPERS = {
    "clock",
    "labels",
    "neighbour",
    "test_evidence",
    "test_public_evidence",
    "test_scenarios",
}
# their workers import the script again, or must be forked before anything else is done
ALONE = ("spectra_processes", "scans_processes", "knots_processes", "videos_loader")
# Many scripts in one process, each as if it were the only one. A daemon thread of one must not
# hinder the end of all.
TOGETHER = """
import os, runpy, signal, sys
folder, *runs = sys.argv[1:]
sys.path.insert(0, folder)
for run in runs:
    script, variant = run.split(":")
    print("#", script, flush=True)
    sys.argv = [script, "--variant", variant, "--seconds", "0.05"]
    try:
        runpy.run_path(os.path.join(folder, script + ".py"), run_name="__main__")
    finally:
        signal.alarm(0)
    if "tensorflow" in sys.modules:
        sys.modules["tensorflow"].compat.v1.reset_default_graph()
os._exit(0)
"""
NEEDS = {"tf1": "tensorflow", "tf2": "tensorflow", "keras": "tensorflow", "torch": "torch"}


def groups() -> dict[str, list[str]]:
    """Scripts that can share a process; those that make noise for others come last, for it lasts as
    long as they do."""
    found: dict[str, list[str]] = {}
    for name, label in LABELS.items():
        own = {"numpy": "plain", "runner": "plain", "watch": "plain", "tf2": "keras"}
        if name not in ALONE:
            found.setdefault(own.get(label.framework, label.framework), []).append(name)
    return {
        group: sorted(names, key=lambda n: LABELS[n].code == "external.noise")
        for group, names in found.items()
    }


def runs_of(group: str) -> list[tuple[str, str]]:
    """Scripts with their variants: of TensorFlow's, whose models take long to make, one in turn, of
    others two."""
    names = groups()[group]
    if NEEDS.get(group) == "tensorflow":
        return [(name, of(name)[i % len(of(name))]) for i, name in enumerate(names)]
    return [
        (name, variant)
        for i, name in enumerate(names)
        for variant in ("slow", of(name)[1 + i % (len(of(name)) - 1)])
    ]


def of(name: str) -> tuple[str, ...]:
    """The variants of a script, those without an end too."""
    return tuple(dict.fromkeys(("slow", *LABELS[name].variants)))


def check(out: str, runs: list[tuple[str, str]]) -> None:
    """Every run said one line of figures."""
    script, seen = "", Counter[tuple[str, str]]()
    for line in out.splitlines():
        if line.startswith("# "):
            script = line[2:]
        elif line.startswith('{"variant"'):
            found = json.loads(line)
            assert found["steps"] > 0 and found["steps_per_second"] > 0, script
            assert found["starvation"] is None or 0 <= found["starvation"] <= 1, script
            seen[script, found["variant"]] += 1
    assert seen == Counter(runs)


def run_of(*command: str, folder: Path) -> str:
    """Return what a script prints."""
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=200, cwd=folder
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("group", groups())
def test_every_script_runs(group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(NEEDS.get(group, "cv2"))
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parents[1]))
    runs = runs_of(group)
    check(run_of("-c", TOGETHER, str(FOLDER), *map(":".join, runs), folder=tmp_path), runs)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
def test_scripts_with_processes_run(name: str, tmp_path: Path) -> None:
    """In two variants, as others."""
    pytest.importorskip(NEEDS.get(LABELS[name].framework, "cv2"))
    out, script = f"# {name}\n", str(FOLDER / f"{name}.py")
    variants = "slow", of(name)[1 + ALONE.index(name) % 2]
    for variant in variants:
        out += run_of(script, "--variant", variant, "--seconds", "0.05", folder=tmp_path)
    check(out, [(name, variant) for variant in variants])


def test_every_script_has_a_label_and_every_code_two_scripts() -> None:
    assert {file.stem for file in FOLDER.glob("*.py")} - HELPERS == set(LABELS)
    counts = Counter(label.code for label in LABELS.values())
    assert not [code for code in CODES if counts[code] < 2]
    for label in LABELS.values():
        assert {label.code, *label.also, *label.second} <= set(CODES)
        assert bool(label.knob) == (label.code != "step.bound")


def users_text(name: str) -> Iterator[str]:
    yield name
    yield (FOLDER / f"{name}.py").read_text()


@pytest.mark.parametrize("name", LABELS)
def test_no_script_says_what_is_wrong_with_it(name: str) -> None:
    text = " ".join(users_text(name)).lower()
    words = (
        "starv",
        "bottleneck",
        "latency",
        "straggler",
        "oversubscri",
        "deadlock",
        " gil",
        "too slow",
        "label",
    )
    assert not [word for word in words if word in text]
    uses = "import fastfeed\n" in text or "\nfrom fastfeed" in text
    assert uses == (LABELS[name].framework in ("runner", "watch")), (
        "others import it in the fixed variant alone"
    )


def run(rate: float, starvation: float | None = None) -> dict[str, Any]:
    return {"steps_per_second": rate, "starvation": starvation}


def test_the_truth_is_what_the_loop_saw_or_what_the_step_does_not_explain() -> None:
    fixed, free = ([run(n * rate) for rate in (10, 12, 11)] for n in (2, 3))
    seen = summary(
        {"slow": [run(10, 0.4), run(12, 0.6), run(11, 0.5)], "fixed": fixed, "free": free}
    )
    assert (seen["starvation"], seen["speedup_if_fixed"], seen["speedup_if_input_free"]) == (
        0.5,
        2,
        3,
    )
    unseen = summary({"slow": [run(10)], "fixed": [run(20)], "free": [run(40)]})
    assert unseen["starvation"] == 0.75 and unseen["starvation_by"] == "the step alone"
    assert summary({"slow": [run(10)], "fixed": [run(9)], "free": [run(9)]})["starvation"] == 0
    apart = summary(
        {"slow": [run(10)], "fixed": [run(20)], "free": [run(40)], "seen": [run(9, 0.6)]}
    )
    assert apart["starvation"] == 0.6 and apart["starvation_by"] == "the loop's own clock"
    drifting = summary(
        {"slow": [run(10), run(20)], "fixed": [run(20), run(40)], "free": [run(30), run(60)]}
    )
    assert (drifting["speedup_if_fixed"], drifting["speedup_if_input_free"]) == (2, 3)
    assert set(summary({"fixed": [run(20)], "free": [run(40)]})) == {"fixed", "free"}


LATENCY = Label("input.latency", "numpy", ("threads",), "sleep", also=("input.serial",))


@pytest.mark.parametrize(
    ("label", "fixed", "free", "doubts"),
    [
        (LATENCY, 2.0, 3.0, 0),
        (LATENCY, 1.0, 3.0, 1),
        (LATENCY, 1.0, 1.0, 2),
        (Label("step.bound", "numpy", (), ""), 1.0, 1.04, 0),
        (Label("step.bound", "numpy", (), ""), 1.2, 1.06, 2),
        (Label("step.host", "numpy", ("step",), ""), 2.0, 1.09, 0),
        (Label("step.host", "numpy", ("step",), ""), 1.0, 1.2, 2),
        (Label("pause.periodic", "numpy", ("pause",), ""), 2.0, 1.0, 0),
    ],
)
def test_a_label_is_held_against_the_figures(
    label: Label, fixed: float, free: float, doubts: int
) -> None:
    truth = {"speedup_if_fixed": fixed, "speedup_if_input_free": free}
    assert len(scenarios_score.holds(label, truth)) == doubts


def test_an_answer_is_scored_in_points_and_per_cent() -> None:
    truth = {"starvation": 0.5, "speedup_if_input_free": 2.0, "speedup_if_fixed": 2.0}
    other, right = (
        {"knob": knob, "predicted_speedup": gain}
        for knob, gain in (("processes", 9), ("threads", 2.2))
    )
    right["interval"] = (1.9, 2.4)
    said = {
        "verdict": "input.serial",
        "starvation": 0.54,
        "speedup_if_input_free": 1.8,
        "recommendations": [other, right],
    }
    found = scenarios_score.score(LATENCY, truth, said)
    assert (found["right"], found["confident_wrong"], found["knob"]) == (True, False, True)
    assert [
        found[f"{n}_{u}"]
        for n, u in (("starvation", "points"), ("speedup", "percent"), ("gain", "percent"))
    ] == (pytest.approx([4, -10, 10]))
    assert found["gain_inside"]
    nothing = scenarios_score.score(LATENCY, {}, {"verdict": None, "recommendations": []})
    assert (nothing["right"], nothing["confident_wrong"], nothing["knob"]) == (False, False, False)
    assert nothing["starvation_points"] is nothing["gain_percent"] is None


def row(name: str, verdict: str | None, **more: Any) -> dict[str, Any]:
    label = LABELS[name]
    found = {"name": name, "code": label.code, "failed": "", "truth": {}, "doubts": []}
    return {**found, "score": {**scenarios_score.score(label, {}, {"verdict": verdict}), **more}}


def test_the_tables_count_rights_wrongs_and_abstentions() -> None:
    steady, unsteady = (
        {"slow": {"all": [10.0, 20.0]}, "fixed": {"all": [20.0, last]}} for last in (47.0, 50.0)
    )
    rows = [
        {**row("signals_thread", "step.bound", slowed=0.01), "truth": steady},
        {**row("pairs_loader", "input.cpu", slowed=0.03), "truth": unsteady},
        row("maps_runner", None, starvation_points=-4.0),
        row("stocks_threads", "input.gil"),
        {"name": "tiles_fit", "code": "step.bound", "failed": "no diagnosis: exit 1"},
    ]
    table = scenarios_score.confusion([r for r in rows if "score" in r]).splitlines()
    assert (
        table[0]
        == "| truth \\ said | step.bound | input.latency | input.copy | abstained | input.cpu |"
    )
    assert table[2:] == [
        "| step.bound | 1 |  |  |  | 1 |",
        "| input.latency |  |  |  | 1 |  |",
        "| input.copy |  |  | 1 |  |  |",
    ]
    text = scenarios_score.markdown(rows)
    assert "right: 2 of 4 (50%); abstained: 1; step.bound called something else: 1 of 2" in text
    assert "slowed by the diagnosis (share): median 0.02, largest 0.03, within 0.02: 1 of 2" in text
    assert (
        "the truth itself, speed-up of the change: rounds within 20 % of each other: 1 of 2" in text
    )
    assert "speed-up without input" not in text, "of one round"
    assert "- tiles_fit: no diagnosis" in text


def test_results_are_read_again_and_others_are_refused(tmp_path: Path) -> None:
    path = scenarios.write([row("maps_runner", None)], tmp_path / "new")
    assert scenarios.read(path)["rows"][0]["name"] == "maps_runner"
    path.write_text('{"kind": "streams", "schema": 1}')
    with pytest.raises(ValueError, match="needed scenarios of schema 1"):
        scenarios.read(path)


def test_a_run_without_figures_has_failed() -> None:
    assert last_line('noise\n{"variant": "slow", "steps": 3}\n', "")["steps"] == 3
    with pytest.raises(Failed, match="exit 1"):
        last_line("noise\n", "exit 1")
