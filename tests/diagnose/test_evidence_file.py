"""Evidence in a file: it is judged again as it was, and bad files are refused."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from fastfeed.diagnose.evidence import DeadProducer, Evidence
from fastfeed.diagnose.evidence_file import Recording, read_evidence, write_evidence
from fastfeed.diagnose.judge.judgement import judge
from fastfeed.diagnose.run.command import replay
from fastfeed.errors import OptionError
from tests.diagnose import diagnoses
from tests.diagnose.evidences import any_evidence
from tests.helpers.mutations import mutated


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


def test_what_asks_a_running_feed_stays_behind(tmp_path: Path) -> None:
    evidence = diagnoses.evidence(0.5)
    assert evidence.loop is not None
    evidence.loop.producers = list
    write_evidence(Recording(evidence), tmp_path / "evidence.gz")
    loop = read_evidence(tmp_path / "evidence.gz").evidence.loop
    assert loop is not None
    assert loop.producers is None


def test_evidence_of_before_the_clock_of_devices_is_read(tmp_path: Path) -> None:
    """Whose GPU it was is unknown then."""
    path = tmp_path / "evidence.gz"
    write_evidence(Recording(diagnoses.evidence(0.5)), path)
    document = json.loads(gzip.decompress(path.read_bytes()))
    seen = document["recording"]["evidence"]
    del seen["loop"]["device_gaps"], seen["machine"]["gpus"][0]["own"]
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    found = read_evidence(path).evidence
    assert found.device_gap is None
    assert judge(found).verdict is not None


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


def damaged_files(path: Path, count: int) -> Iterator[Recording | None]:
    """Yield what is read from files with damage in them; None: it was refused."""
    write_evidence(Recording(diagnoses.evidence(0.5), "train.py"), path)
    whole = path.read_bytes()
    document = json.loads(gzip.decompress(whole))
    draw = random.Random(0)
    for seed in range(count):
        if seed % 5:
            text = gzip.compress(dumped(mutated(document, seed=seed)), 1)
        else:
            at = draw.randrange(len(whole))
            text = whole[:at] + bytes([whole[at] ^ 1 << draw.randrange(8)]) + whole[at + 1 :]
        path.write_bytes(text if seed % 25 else whole[: draw.randrange(len(whole))])
        try:
            yield read_evidence(path)
        except OptionError:
            yield None


def dumped(document: Any) -> bytes:
    """Return a document as JSON, also one that is nested too deep for `json.dumps`."""
    with contextlib.suppress(RecursionError):
        return json.dumps(document).encode()
    return b'{"schema": 1, "recording": ' + b"[" * 10**5 + b"]" * 10**5 + b', "places": []}'


@pytest.mark.parametrize("count", [50, pytest.param(500, marks=pytest.mark.slow)])
def test_damaged_files_are_refused_or_read(count: int, tmp_path: Path) -> None:
    again = tmp_path / "again.gz"
    refused = 0
    for one in damaged_files(tmp_path / "evidence.gz", count):
        refused += one is None
        if one is not None and refused < 40:
            write_evidence(one, again)
            assert read_evidence(again) == one
    assert count * 0.6 < refused < count


@pytest.mark.slow
def test_what_is_read_from_damaged_files_is_judged_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "evidence.gz"
    options: Any = {"evidence": None, "anonymous": False, "json": None, "html": None, "trace": None}
    judged = 0
    for one in damaged_files(path, 40):
        if one is not None:
            judged += 1
            with contextlib.suppress(OptionError):
                replay(path, **options)
    assert judged > 2


def test_evidence_that_cannot_be_judged_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "evidence.gz"
    write_evidence(Recording(diagnoses.evidence(0.5)), path)
    monkeypatch.setattr("fastfeed.diagnose.judge.judgement.judge", lambda *_, **__: 1 / 0)
    with pytest.raises(OptionError, match="is damaged .ZeroDivisionError"):
        replay(path, evidence=None, anonymous=True)
