"""What interventions do, in plain words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fastfeed.diagnose.evidence import Intervention
from fastfeed.diagnose.evidence_file import Recording, read_evidence, write_evidence
from fastfeed.diagnose.report.intervention_words import lines_of
from fastfeed.diagnose.report.json import json_of
from tests.diagnose import diagnoses

FOUND = (
    Intervention("cores", 1, 0.12, (0.08, 0.16), 0.2),
    Intervention("cores", 2, 0.4, (0.3, 0.5), 0.2, "not so many cores were free: they got 1.1"),
    Intervention("lock", 0.25, 0.001, (-0.01, 0.02)),
    Intervention("producers", 0.25, 0.33, (0.3, 0.36)),
    Intervention("producers", 0.25, 0.0, (-0.03, 0.03)),
    Intervention("delay", 0.25, 0.24, (0.22, 0.26)),
    Intervention("delay", 0.5, 0.01, (-0.01, 0.02)),
    Intervention("cores", 64, note="no time was left"),
    Intervention("lock", 0.25, note="no time was left"),
)


def test_the_words() -> None:
    assert lines_of([vars(one) for one in FOUND]) == [
        "1 more busy core makes a step 12 % slower (8 to 16 %).",
        "2 more busy cores make a step 40 % slower (30 to 50 %); not so many cores were free: "
        "they got 1.1.",
        "Another thread that holds the interpreter lock for 25 % of the time changes nothing that "
        "can be seen (-1 to 2 %).",
        "Worker processes that are stopped for 25 % of the time make a step 33 % slower (30 to 36 "
        "%).",
        "Worker processes that are stopped for 25 % of the time change nothing that can be seen "
        "(-3 to 3 %).",
        "A delay of 25 % of the time from step to step makes a step 24 % longer (22 to 26 %), so "
        "the input is not the limit.",
        "A delay of 50 % of the time from step to step makes a step 1 % longer (-1 to 2 %), so the "
        "input is the limit.",
        "Not measured: 64 more busy cores, another thread that holds the interpreter lock for 25 % "
        "of the time: no time was left.",
    ]
    assert lines_of(()) == []


def test_a_kind_of_a_later_version() -> None:
    assert lines_of([vars(Intervention("{}", 2.0, 0.1, (0.0, 0.2)))])[0].startswith(
        "A dose of 200 % "
    )


def test_they_are_in_the_files(tmp_path: Path) -> None:
    one = diagnoses.diagnosis("step.bound")
    seen = replace(one.evidence, interventions=FOUND)
    write_evidence(Recording(seen), tmp_path / "evidence.gz")
    assert read_evidence(tmp_path / "evidence.gz").evidence.interventions == FOUND
    told = json_of(replace(one, evidence=seen))["interventions"]
    assert told[0] == {
        "kind": "cores",
        "dose": 1,
        "effect": 0.12,
        "interval": [0.08, 0.16],
        "cost_s": 0.2,
        "note": "",
    }
    assert told[-1]["effect"] is told[-1]["interval"] is None
