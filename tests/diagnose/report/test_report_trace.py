"""The trace is valid for Perfetto: a name for each track, nested slices, times in microseconds."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fastfeed.diagnose.diagnosis import Diagnosis
from fastfeed.diagnose.evidence import PRODUCER, Task
from fastfeed.diagnose.report import trace
from fastfeed.steps.timeline import Mark
from tests.diagnose.diagnoses import DECODE, EXAMPLES, START_S, diagnosis

NEEDS = {
    "X": {"dur"},
    "M": {"args"},
    "C": {"args"},
    "b": {"id", "cat"},
    "e": {"id", "cat"},
    "i": {"s"},
}
Events = list[dict[str, Any]]


def events_of(told: Diagnosis, folder: Path) -> Events:
    trace.write(told, folder / "trace.json")
    found = json.loads((folder / "trace.json").read_text())
    assert found["otherData"]["headline"]
    events: Events = found["traceEvents"]
    return events


def tracks_of(events: Events) -> dict[tuple[int, int], Events]:
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    return found


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
        assert 0 < event["pid"] < 2**31
        assert 0 < event.get("tid", 1) < 2**31
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    tracks = tracks_of(events)
    assert set(tracks) <= named
    assert {pid for pid, _ in named} == {e["pid"] for e in events if e["name"] == "process_name"}
    assert all(map(nests, tracks.values()))
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
    mine = tracks_of(events)[4000, 4000]
    steps, waits = (
        [e for e in mine if e["name"].startswith("step")],
        [e for e in mine if e["name"] == "wait for input"],
    )
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


def test_marks_batches_samples_and_counters(tmp_path: Path) -> None:
    events = events_of(diagnosis("pause.periodic"), tmp_path)
    names = [(e["ph"], e["name"]) for e in events]
    assert names.count(("i", "epoch: epoch 1")) == 1
    assert names.count(("b", "checkpoint: model.keras")) == 2
    tracks = tracks_of(events)
    assert [e["name"] for e in tracks[4000, 4001]] == ["batch"] * 20, "on the thread that made them"
    titles = {e["args"]["name"]: (e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    flame = tracks[titles[f"producer-1: {trace.IN_ORDER}"]]
    decode = next(e for e in flame if e["name"] == "decode")
    assert decode["args"] == {"place": "data.py:41", "samples": 408, "share": 0.816}
    assert {e["name"] for e in events if e["ph"] == "C"} == {"steps/s", "waiting, %"}


def test_batches_that_overlap_have_tracks_of_their_own(tmp_path: Path) -> None:
    told = diagnosis("input.cpu")
    marks = tuple(
        Mark("batch", START_S + i * 0.1, START_S + i * 0.1 + 0.25, "pool") for i in range(9)
    )
    child = Task("worker", 5000, 0, PRODUCER, 1.0, stacks={(DECODE,): 4})
    seen = replace(told.evidence, marks=marks, tasks=(*told.evidence.tasks, child))
    events = events_of(replace(told, evidence=seen), tmp_path)
    mine = {
        e["tid"]
        for e in events
        if e["name"] == "thread_name" and e["args"]["name"] == "pool: batches"
    }
    tracks = tracks_of(events)
    assert sorted(len(tracks[4000, tid]) for tid in mine) == [3, 3, 3]
    assert all(map(nests, tracks.values()))
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert processes == {4000: "train.py", 5000: "worker"}


def test_a_hundred_thousand_steps(tmp_path: Path) -> None:
    """An event a line."""
    trace.write(EXAMPLES["long"](), tmp_path / "trace.json")
    text = (tmp_path / "trace.json").read_text()
    assert text.count('\n{"ph": "X", "name": "step') == 100_000
    assert text.count('"ph": "C"') == 2 * trace.MAX_COUNTER_POINTS
