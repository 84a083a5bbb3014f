"""The JSON file: what the design promises, nothing that JSON cannot hold, a page of docs for every
key."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fastfeed.diagnose.diagnosis import CODES
from fastfeed.diagnose.evidence import TASK_STATES
from fastfeed.diagnose.judge.judgement import judge
from fastfeed.diagnose.report import json as report
from fastfeed.diagnose.report.formats import percent
from fastfeed.diagnose.report.headline import headline_of
from fastfeed.diagnose.report.sections import foot_of, sections_of
from fastfeed.diagnose.report.writers import write_reports, write_whole
from fastfeed.probes.machine_log import Machine
from fastfeed.steps.timeline import OBSERVING, Mark
from tests.diagnose.diagnoses import (
    DECODE,
    EXAMPLES,
    FEED,
    MAIN,
    STEP,
    diagnosis,
    long,
    odd,
    unknown,
)
from tests.diagnose.evidences import evidence, fed_by, loop_of, trainer

ROOT = Path(__file__).parents[3]
SCHEMA = (ROOT / "docs" / "diagnosis-schema.md").read_text()
PROMISED = [
    "verdict",
    "causes",
    "starvation",
    "steps_per_second",
    "step_seconds",
    "speedup_if_input_free",
]
PROMISED += ["recommendations", "abstained"]


def written(folder: Path, name: str) -> dict[str, Any]:
    path = folder / "diagnosis.json"
    assert write_reports(EXAMPLES[name](), {"json": path, "html": None}) == [path]
    found: dict[str, Any] = json.loads(path.read_text(), parse_constant=refuse)
    return found


def refuse(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_file_is_json(name: str, tmp_path: Path) -> None:
    found = written(tmp_path, name)
    assert [key for key in found if key in PROMISED] == PROMISED
    assert found["schema"] == 1
    assert (tmp_path / "diagnosis.json").stat().st_size < 2e6


@pytest.mark.parametrize("code", CODES)
def test_what_the_design_promises(code: str, tmp_path: Path) -> None:
    found, told = written(tmp_path, code), diagnosis(code)
    assert told.figures is not None
    assert found["verdict"] == code
    assert found["abstained"] is None
    assert [(c["code"], c["share"], tuple(c["evidence"])) for c in found["causes"]] == [
        (c.code, c.share, c.evidence) for c in told.causes
    ]
    keys = ("starvation", "steps_per_second", "step_seconds")
    values = (told.figures.starvation, told.figures.steps_per_second, told.figures.step_s)
    assert tuple(found[key] for key in keys) == values
    assert found["speedup_if_input_free"] >= 1
    for given, kept in zip(told.recommendations, found["recommendations"], strict=True):
        assert kept["interval"] == list(given.interval)
        assert (kept["change"], kept["knob"], kept["value"]) == (
            given.change,
            given.knob,
            given.value,
        )
        assert kept["predicted_speedup"] == given.predicted_speedup


def test_without_a_verdict(tmp_path: Path) -> None:
    found = written(tmp_path, "no_steps")
    assert found["verdict"] is found["starvation"] is found["figures"] is found["loop"] is None
    assert "no training step" in found["abstained"]
    assert found["not_measured"] == ["steps"]


def test_what_is_not_known_is_null(tmp_path: Path) -> None:
    found = written(tmp_path, "unknown")
    unknowns = (
        found["speedup_if_input_free"],
        found["overhead"],
        found["ceiling"]["step_s"],
        found["causes"][0]["share"],
    )
    assert unknowns == (None, None, None, None)
    assert found["speedup_range"] == [None, None]
    assert unknown().causes[0].share != found["causes"][0]["share"]


def test_the_timeline_of_many_steps_adds_up(tmp_path: Path) -> None:
    found = written(tmp_path, "long")
    columns = found["timeline"]["steps"]
    assert {len(column) for column in columns.values()} == {report.MAX_TIMELINE_ROWS}
    assert sum(columns["steps"]) == 100_000
    steps = long().evidence.loop.steps  # type: ignore[union-attr]
    waited = sum(
        count * wait for count, wait in zip(columns["steps"], columns["wait_s"], strict=True)
    )
    assert waited == pytest.approx(sum(step.wait_s for step in steps), rel=0.01)
    assert max(columns["longest_s"]) == pytest.approx(
        max(step.end_s - step.begin_s for step in steps), abs=1e-6
    )
    assert columns["end_s"] == sorted(columns["end_s"])
    assert len(found["timeline"]["marks"]) + found["timeline"]["marks_left_out"] == 2000
    assert len(found["tasks"]) + found["tasks_left_out"] == 300


def test_the_stages_of_a_feed_runner_divide_its_waits() -> None:
    told = diagnosis("input.cpu")
    found = report.json_of(replace(told, evidence=replace(told.evidence, feed=FEED)))
    waits, (made, idle) = found["feed"]["waits"], found["feed"]["producers"]
    assert sum(waits.values()) == pytest.approx(found["starvation"])
    assert {name: one / found["starvation"] for name, one in waits.items()} == pytest.approx(
        {"read": 0.5, "transform": 0.25, "shuffle": 0.25}
    )
    assert made == {"batches": 40, "busy": {"read": 0.4, "transform": 0.2, "full": 0.4}}
    assert idle == {"batches": 0, "busy": {}}
    unfed = report.json_of(told)
    assert unfed["feed"] is None
    lines = [line for line in texts_of(found) if "of which" in line]
    share = percent(found["starvation"])
    parts = [percent(waits[name]) for name in ("read", "transform", "shuffle")]
    assert lines == [
        "Waits for input: {}, of which read {}, transform {}, shuffle {}.".format(share, *parts)
    ]
    assert not [line for line in texts_of(unfed) if "of which" in line]


def texts_of(told: dict[str, Any]) -> list[str]:
    return [text for section in sections_of(told) for text in section.texts]


def test_few_steps_are_all_there(tmp_path: Path) -> None:
    found = written(tmp_path, "abstained")
    assert found["timeline"]["steps"]["steps"] == [1] * 12
    assert found["timeline"]["steps"]["start_s"][0] == -0.52, "what lies before zero is warm-up"


def test_odd_names_stay_what_they_are(tmp_path: Path) -> None:
    found = written(tmp_path, "odd")
    told = headline_of(odd())
    assert found["headline"] == told.replace("\udcff", "\\udcff")


def paths(value: Any, at: str = "") -> Iterator[str]:
    """Every key with those above it; states, stages and names of libraries are no keys of the
    schema."""
    named = at in ("watched.pools", "feed.waits") or at.endswith(".busy")
    if isinstance(value, dict) and not named:
        for key, one in value.items():
            path = f"{at}.{key}".lstrip(".")
            yield path
            yield from paths(one, path)
    elif isinstance(value, list):
        for one in value:
            yield from paths(one, f"{at}[]")


def test_the_docs_name_every_key_and_no_other() -> None:
    named = re.findall(r"^\| `([a-z0-9_.\[\]]+)` \|", SCHEMA, re.MULTILINE)
    found = dict.fromkeys(
        path for make in EXAMPLES.values() for path in paths(report.json_of(make()))
    )
    assert sorted(named) == sorted([*found, *CODES, *TASK_STATES])


def test_the_docs_have_the_codes_and_the_order_of_the_file(tmp_path: Path) -> None:
    for code, meaning in CODES.items():
        assert f"| `{code}` | {meaning} |" in SCHEMA
    top = re.findall(r"^\| `([a-z_]+)` \|", SCHEMA.partition("## Codes")[0], re.MULTILINE)
    assert top == list(written(tmp_path, "input.serial"))


def test_a_file_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "report"
    path.write_text("old")

    def pieces() -> Iterator[str]:
        yield "new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(path, pieces())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    link = tmp_path / "link"
    link.symlink_to(path)
    write_whole(link, ["new"])
    assert path.read_text() == "new"
    assert link.is_symlink()
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "missing" / "report", ["new"])


def test_what_is_no_ordinary_file_is_written_to() -> None:
    write_whole(Path("/dev/null"), ["new"])
    assert not Path("/dev/null").is_file()


def test_each_code_has_its_place_in_the_documentation() -> None:
    for code in CODES:
        (docs, *_) = [one["docs"] for one in report.json_of(diagnosis(code))["causes"]]
        file, _, anchor = docs.partition("#")
        heads = re.findall(r"^#+ (.+)$", (ROOT / file).read_text(), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def test_watching_and_experiments_are_two_figures() -> None:
    """CPU time on a free core costs a step nothing; on full cores it displaces a part of it."""
    one = diagnosis("input.cpu")
    start_s = one.evidence.start_s
    marks = (
        Mark("experiment", start_s - 5, start_s - 4),
        Mark("experiment", start_s + 1, start_s + 2.5),
        Mark(OBSERVING, start_s + 3, start_s + 3.02),
    )
    for used, displaced in ((0.0, 0.0), (1.0, 0.1), (2.0, 0.2), (3.0, 0.2)):
        machine = Machine(2, own_cpu=used)
        seen = replace(one.evidence, marks=marks, machine=machine, overhead_s=0.4)
        seen = replace(seen, end_s=start_s + 20.0)
        found = report.json_of(replace(one, evidence=seen))
        assert found["overhead"] == pytest.approx((0.02 + displaced) / 20)
        assert found["watched"]["experiments_s"] == 1.5
        assert "experiments fetched batches ahead or slowed the loop for 1.50 s" in foot_of(found)


def test_waits_between_the_runs_of_a_session_are_on_the_timeline() -> None:
    """They were seen on no step: a run of a session without a queue contains no wait."""
    loop = loop_of([0.0] * 100, 10.0, gap_ms=30.0, kind="session", waits="none", buffer=0)
    seen = evidence(loop, (trainer(),), parts=fed_by(0.75))
    steps = report.json_of(judge(seen))["timeline"]["steps"]
    assert sum(step.wait_s for step in loop.steps) == 0
    assert steps["wait_s"][:99] == pytest.approx([0.03] * 99, abs=1e-3)
    assert steps["mean_s"][:99] == pytest.approx([0.04] * 99, abs=1e-3)
    assert all(a <= b for a, b in itertools.pairwise(steps["start_s"]))


def test_the_hottest_lines_of_the_trainer_and_of_all_producers() -> None:
    found = report.json_of(diagnosis("input.gil"))["hottest"]
    lines = [(one["role"], one["place"], one["share"]) for one in found]
    assert lines[:3] == [
        ("trainer", str(DECODE), 0.6),
        ("trainer", str(STEP), 0.4),
        ("producer", str(DECODE), pytest.approx(408 / 500)),
    ], "samples in a call of a library count for the line that called it"
    assert found[2]["busy"]["sleep"] == pytest.approx(0.62)
    one = diagnosis("input.gil")
    sampled = replace(one, evidence=replace(one.evidence, parts=()))
    lines = [(o["role"], o["place"], o["share"]) for o in report.json_of(sampled)["hottest"]]
    assert lines[:2] == [("trainer", str(MAIN), 0.71), ("trainer", str(STEP), 0.29)]
