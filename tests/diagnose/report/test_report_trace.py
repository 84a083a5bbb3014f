"""The trace is valid for Perfetto: named tracks, nested slices, times in microseconds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fastfeed.diagnose.diagnosis import Diagnosis
from fastfeed.diagnose.report.writers import write_reports
from fastfeed.steps.timeline import Mark
from tests.diagnose.diagnoses import EXAMPLES, START_S, diagnosis

NEEDS = {"X": {"dur"}, "M": {"args"}, "b": {"id", "cat"}, "e": {"id", "cat"}, "i": {"s"}}
Events = list[dict[str, Any]]


def events_of(told: Diagnosis, folder: Path) -> Events:
    write_reports(told, {"trace": folder / "trace.json"})
    found = json.loads((folder / "trace.json").read_text())
    assert found["otherData"]["headline"]
    events: Events = found["traceEvents"]
    return events


def nests(slices: Events) -> bool:
    """Return True if each slice ends before the slice around it."""
    open_until: list[float] = []
    for one in sorted(slices, key=lambda one: (one["ts"], -one["dur"])):
        end = round(one["ts"] + one["dur"], 3)
        while open_until and open_until[-1] <= one["ts"]:
            open_until.pop()
        if open_until and end > open_until[-1]:
            return False
        open_until.append(end)
    return True


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "long"])
def test_every_trace_is_well_formed(name: str, tmp_path: Path) -> None:
    events = events_of(EXAMPLES[name](), tmp_path)
    for event in events:
        assert NEEDS[event["ph"]] <= set(event)
        assert event["ts"] >= 0
    assert [e["name"] for e in events if e["ph"] == "M"] == ["process_name", "thread_name"]
    (track,) = {(e["pid"], e["tid"]) for e in events}
    assert all(0 < number < 2**31 for number in track)
    assert nests([e for e in events if e["ph"] == "X"])
    ends = [(e["cat"], e["id"]) for e in events if e["ph"] == "e"]
    assert ends == [(e["cat"], e["id"]) for e in events if e["ph"] == "b"]


def test_the_check_sees_slices_that_do_not_nest() -> None:
    assert nests(
        [{"ts": 0, "dur": 10}, {"ts": 0, "dur": 5}, {"ts": 5, "dur": 5}, {"ts": 10, "dur": 1}]
    )
    assert not nests([{"ts": 0, "dur": 10}, {"ts": 5, "dur": 6}])


def test_steps_and_waits_are_on_the_track_of_the_trainer(tmp_path: Path) -> None:
    told = diagnosis("input.serial")
    events = events_of(told, tmp_path)
    steps = [e for e in events if e["ph"] == "X" and e["name"].startswith("step")]
    waits = [e for e in events if e["name"] == "wait for input"]
    assert {(e["pid"], e["tid"]) for e in steps + waits} == {(4000, 4000)}
    assert len(steps) == len(waits) == 384
    assert steps[0]["ts"] == waits[0]["ts"] == 0
    assert steps[0]["dur"] == pytest.approx(0.052 * 0.98 * 1e6, abs=0.01)
    assert waits[0]["dur"] == pytest.approx(steps[0]["dur"] * 0.71, abs=0.01)
    assert sum(e["name"] == "step, its input at hand" for e in steps) == 12
    loop = told.evidence.loop
    assert loop is not None
    assert steps[-1]["ts"] == pytest.approx(
        (loop.steps[-1].begin_s - loop.steps[0].begin_s) * 1e6, abs=0.01
    )


def test_marks_and_batches(tmp_path: Path) -> None:
    """Batches that overlap are asynchronous slices, which Perfetto puts beside each other."""
    told = diagnosis("pause.periodic")
    marks = tuple(
        Mark("batch", START_S + i * 0.1, START_S + i * 0.1 + 0.25, "pool") for i in range(9)
    )
    seen = replace(told.evidence, marks=(*told.evidence.marks, *marks))
    events = events_of(replace(told, evidence=seen), tmp_path)
    names = [(e["ph"], e["name"]) for e in events]
    assert names.count(("i", "epoch: epoch 1")) == 1
    assert names.count(("b", "checkpoint: model.keras")) == 2
    assert names.count(("b", "batch: producer-1")) == 20
    begins = [e["ts"] for e in events if (e["ph"], e["name"]) == ("b", "batch: pool")]
    ends = [e["ts"] for e in events if (e["ph"], e["name"]) == ("e", "batch: pool")]
    assert [b - a for a, b in zip(begins, ends, strict=True)] == pytest.approx([0.25e6] * 9)


def test_a_hundred_thousand_steps(tmp_path: Path) -> None:
    """An event a line."""
    write_reports(EXAMPLES["long"](), {"trace": tmp_path / "trace.json"})
    text = (tmp_path / "trace.json").read_text()
    assert text.count('\n{"ph": "X", "name": "step') == 100_000
