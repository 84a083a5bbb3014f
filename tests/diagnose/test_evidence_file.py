"""Evidence in a file: it is judged again as it was, and bad files are refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given

from fastfeed.diagnose.evidence import DeadProducer, Evidence
from fastfeed.diagnose.evidence_file import Recording, read_evidence, write_evidence
from fastfeed.diagnose.judge.judgement import judge
from fastfeed.errors import OptionError
from tests.diagnose import diagnoses
from tests.diagnose.evidences import any_evidence


@given(any_evidence())
def test_any_evidence_comes_back(tmp_path_factory: pytest.TempPathFactory, given: Evidence) -> None:
    path = tmp_path_factory.mktemp("evidence") / "evidence.gz"
    dead = DeadProducer("process 7", "process 7 ended: SIGKILL", -9)
    recording = Recording(given, "train.py", (dead,))
    write_evidence(recording, path)
    assert read_evidence(path) == recording


@pytest.mark.parametrize(
    "make", [lambda: diagnoses.evidence(0.5), lambda: diagnoses.odd().evidence]
)
def test_it_is_judged_as_it_was(tmp_path: Path, make: object) -> None:
    evidence = make()  # type: ignore[operator]
    write_evidence(Recording(evidence), tmp_path / "evidence.gz")
    assert judge(read_evidence(tmp_path / "evidence.gz").evidence) == judge(evidence)


def test_the_remark_of_a_running_feed_stays_behind(tmp_path: Path) -> None:
    evidence = diagnoses.evidence(0.5)
    assert evidence.loop is not None
    evidence.loop.status = lambda: "at work"
    write_evidence(Recording(evidence), tmp_path / "evidence.gz")
    loop = read_evidence(tmp_path / "evidence.gz").evidence.loop
    assert loop is not None
    assert loop.status is None


def test_files_that_are_no_evidence(tmp_path: Path) -> None:
    path = tmp_path / "evidence.gz"
    write_evidence(Recording(diagnoses.evidence(0.5)), path)
    whole = path.read_bytes()
    document = json.loads(gzip.decompress(whole))
    broken = bytearray(whole)
    broken[len(whole) // 2] ^= 255
    for data, text in (
        (whole[: len(whole) // 2], "only a part of it"),
        (bytes(broken), "is no evidence"),
        (b"", "is no evidence"),
        (b"import time", "is no evidence"),
        (gzip.compress(b"[1, 2]"), "is no evidence"),
        (gzip.compress(json.dumps({**document, "schema": 99}).encode()), "reads schema 1"),
        (gzip.compress(json.dumps({**document, "places": []}).encode()), "is damaged"),
        (gzip.compress(json.dumps({**document, "recording": {"x": 1}}).encode()), "is damaged"),
    ):
        path.write_bytes(data)
        with pytest.raises(OptionError, match=text):
            read_evidence(path)
    with pytest.raises(FileNotFoundError):
        read_evidence(tmp_path / "none.gz")
