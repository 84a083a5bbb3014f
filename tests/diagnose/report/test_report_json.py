"""The JSON file: what the design promises, nothing that JSON cannot hold, a page of docs for every
key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastfeed.diagnose.diagnosis import CODES
from fastfeed.diagnose.evidence import TASK_STATES
from fastfeed.diagnose.report import files
from fastfeed.diagnose.report import json as report
from fastfeed.diagnose.report.headline import headline_of
from fastfeed.errors import OptionError
from tests.diagnose.diagnoses import EXAMPLES, diagnosis, long, odd, unknown

SCHEMA = (Path(__file__).parents[3] / "docs" / "diagnosis-schema.md").read_text()
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
    report.write(EXAMPLES[name](), path)
    return report.load(path)


def refuse(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_file_is_json_and_is_read_back(name: str, tmp_path: Path) -> None:
    found = written(tmp_path, name)
    assert found == json.loads(
        (tmp_path / "diagnosis.json").read_bytes().decode(), parse_constant=refuse
    )
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


def test_few_steps_are_all_there(tmp_path: Path) -> None:
    found = written(tmp_path, "abstained")
    assert found["timeline"]["steps"]["steps"] == [1] * 12
    assert found["timeline"]["steps"]["start_s"][0] == -0.52, "what lies before zero is warm-up"


def test_odd_names_stay_what_they_are(tmp_path: Path) -> None:
    found = written(tmp_path, "odd")
    told = headline_of(odd())
    assert found["headline"] == told.replace("\udcff", "\\udcff")


def paths(value: Any, at: str = "") -> Iterator[str]:
    """Every key with those above it; states and names of libraries are no keys of the schema."""
    if isinstance(value, dict) and at != "watched.pools" and not at.endswith(".busy"):
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


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            '{"schema": 2, "verdict": null}',
            "is a diagnosis of schema 2, and this fastfeed reads schema 1",
        ),
        ('{"schema": "1", "verdict": null}', "of schema '1'"),
        ("[]", "is no diagnosis"),
        ('{"steps": 3}', "is no diagnosis"),
        ("{", "is no JSON file"),
        ("[" * 100_000, "is no JSON file"),
    ],
)
def test_other_files_are_refused_in_a_sentence(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(OptionError, match=re.escape(told)) as refused:
        report.load(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(OptionError, match="is no JSON file"):
        report.load(path)


def test_a_file_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "report"
    path.write_text("old")

    def pieces() -> Iterator[str]:
        yield "new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.write_whole(path, pieces())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    link = tmp_path / "link"
    link.symlink_to(path)
    files.write_whole(link, ["new"])
    assert path.read_text() == "new"
    assert link.is_symlink()
    with pytest.raises(FileNotFoundError):
        files.write_whole(tmp_path / "missing" / "report", ["new"])


def test_what_is_no_ordinary_file_is_written_to() -> None:
    files.write_whole("/dev/null", ["new"])
    assert not Path("/dev/null").is_file()
