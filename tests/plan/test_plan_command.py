"""`fastfeed plan` as a user runs it: tables, files, errors."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from fastfeed.cli import main

WORDS = (
    "plan samples=1.28M stored=110KB sample=150KB batch=64 source=8ms step=32:164ms,64:292ms "
    "parameters=25.6M accelerators=8 per_machine=4 cores=32 interconnect=10Gbit/s epochs=90"
)


def run(words: str):
    return CliRunner().invoke(main, words.split(), env={"COLUMNS": "100"})


def test_the_tables_and_the_files(tmp_path):
    done = run(f"{WORDS} --output {tmp_path}")
    assert done.exit_code == 0, done.output
    assert max(map(len, done.output.splitlines()[:-1])) <= 100
    for text in (
        "2 threads",
        "balanced batch",
        "samples / (samples_per_s",
        "assumed: float32",
        "price=",
    ):
        assert text in done.output
    found = json.loads((tmp_path / "plan.json").read_text())
    assert found["schema"] == 2 and len(found["settings"]) == 8
    assert found["figures"]["batch"] == {"value": 64, "source": "given", "given": ["batch=64"]}
    assert found["chosen"] in found["settings"]
    assert all(need["why"] for need in found["needs"])


def test_a_plan_without_producers():
    done = run("plan dataset=300GB disk=100GB")
    assert done.exit_code == 0, done.output
    assert "warning: storage, in all: does not fit on disk" in done.output


def test_bare_plan_explains_itself():
    done = run("plan")
    assert done.exit_code == 0
    for text in ("fastfeed plan samples=1.28M", "interconnect", "TPUv5e"):
        assert text in done.output


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("plan weights=10MB parameters=25.6M", "contradict each other"),
        ("plan bacth=3", "did you mean batch"),
        ("plan samples=3 --train sim:1ms", "--train alone would be ignored"),
        ("plan --workload sleep:often", "50ms"),
    ],
)
def test_bad_input(words, text):
    done = run(words)
    assert done.exit_code == 2 and text in done.output
