"""More batches of a proven script are compared as in its proof, and told in the table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import prove, prove_batches
from bench.prove_batches import case_of, compare_more, edits_of, shows_of, told, uncompared
from fastfeed.diagnose.patches.proposal import SHOWING
from fastfeed.diagnose.patches.serial_loop import SerialLoop
from fastfeed.diagnose.patches.source_file import Edit, SourceFile, edited
from fastfeed.diagnose.prove.digests import COMPARED_BATCHES, Digests
from fastfeed.diagnose.prove.prove_command import diff_of, marks_of
from fastfeed.diagnose.prove.trial import Result

SCRIPT = """\
import time

import numpy as np

stream = iter(int, 1)
running = 3
while running:
    rows = next(stream)
    batch = np.stack([rows])
    time.sleep(0.01)
    print(batch)
"""


def said(kind: str = "sampled", line: int = 10, *made: int) -> dict[str, Any]:
    """What a diagnosis in JSON says of the script's loop."""
    parts = [{"kind": "input", "place": f"`<module>` at train.py:{one}"} for one in made]
    parts.append({"kind": "step", "place": f"`<module>` at train.py:{line}"})
    loop = {"name": "the loop", "kind": kind, "where": f"train.py:{line}", "batch": []}
    return {"loop": loop, "parts": parts, "machine": {"cores": 2}}


def row(**about: Any) -> dict[str, Any]:
    found = {
        "took_s": 100.0,
        "lost_to_input": 0.5,
        "speedup": 1.5,
        "interval": [1.4, 1.6],
        "diff": "--- a",
        "batches": "same batches",
        "tried": [],
    }
    return {**found, **about}


@pytest.fixture
def file(tmp_path: Path) -> SourceFile:
    (tmp_path / "train.py").write_text(SCRIPT)
    return SourceFile(tmp_path / "train.py")


def result(values: list[int]) -> Result:
    found = Digests()
    for value in values:
        found.add((np.full((2, 2), value),))
    return Result(digests=found)


def test_a_diff_becomes_edits_of_whole_lines(file: SourceFile, tmp_path: Path) -> None:
    files = {file.name: file}
    begin = SCRIPT.index("stream")
    edit = Edit(file.name, begin, begin + len("stream = "), "import os\n\nfeed = ")
    found = edits_of(diff_of([edit], files, base=tmp_path), files, base=tmp_path)
    assert edited(SCRIPT, found) == edited(SCRIPT, [edit])
    assert [SCRIPT[one.begin : one.end] for one in found] == ["stream = iter(int, 1)\n"]


def test_what_shows_the_batches_fits_beside_the_patch(file: SourceFile, tmp_path: Path) -> None:
    case = case_of(said("sampled", 10, 9), {file.name: file})
    first = next(SerialLoop().proposals(case))
    kept = row(tried=[{"title": first.title, "kept": True}])
    patch = edits_of(diff_of(first.edits, case.files, base=tmp_path), case.files, base=tmp_path)
    (mark,), (show,) = marks_of(case), shows_of(case, kept)
    assert (show,) == first.shows
    lines = edited(SCRIPT, [mark, *patch, show]).split("\n")
    assert lines == edited(SCRIPT, [mark, *first.edits, show]).split("\n")
    end = [f"    {SHOWING.format('tick()')}", "    batch = next(made_batches)"]
    end += [f"    {SHOWING.format('batch((batch,))')}", "    time.sleep(0.01)", "    print(batch)"]
    assert lines[-6:] == [*end, ""]


def test_a_patch_of_what_hooks_see_is_not_shown(file: SourceFile) -> None:
    case = case_of(said("sampled", 10, 9), {file.name: file})
    assert shows_of(case, row(tried=[{"title": "num_workers=2", "kept": True}])) == ()
    title = next(SerialLoop().proposals(case)).title
    assert shows_of(case, row(tried=[{"title": title, "kept": False}])) == ()
    assert marks_of(case_of(said("torch"), case.files)) == ()
    assert marks_of(case_of({**said(), "loop": None}, case.files)) == ()


def test_equal_batches_are_counted_as_far_as_both_go() -> None:
    found = told(result([1, 2, 3]), result([1, 2]), again=lambda: pytest.fail("it is not needed"))
    assert found == {"batches": 2, "distinct": 2, "same": True, "text": "the first 2 are equal"}
    assert told(result([1, 1]), result([1, 1]), again=Result)["distinct"] == 1


@pytest.mark.parametrize(("again", "end"), [([1, 2, 3], "first"), ([4, 2, 3], "differ, too")])
def test_the_first_batch_that_differs_is_told(again: list[int], end: str) -> None:
    found = told(result([1, 2, 3]), result([1, 7, 3]), again=lambda: result(again))
    assert (found["batches"], found["same"]) == (3, False)
    begin = "other batches: 1 of the first 3 batches differ, number 1 is the first"
    assert found["text"].startswith(begin)
    assert found["text"].endswith(end)


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (Result(failed="no data"), result([1]), "as it is: no data"),
        (result([1]), Result(failed="TypeError"), "with the patch: TypeError"),
        (result([1]), Result(), "no batch of the loop was seen in both runs"),
    ],
)
def test_what_was_not_seen_is_not_called_the_same(before: Result, after: Result, text: str) -> None:
    found = told(before, after, again=lambda: before)
    assert found == uncompared(text)
    assert found["same"] is None


def test_the_table_tells_what_more_batches_are() -> None:
    wholes = [(4_999, 9, True), (812, 1, True), (1_200, 2, False), (0, 0, None)]
    rows = {
        f"script{number}": row(whole={"batches": count, "distinct": distinct, "same": same})
        for number, (count, distinct, same) in enumerate(wholes)
    }
    text = prove.table({**rows, "alone": row(), "broken": {"took_s": 1.0, "failed": "no"}})
    lines = text.split("\n")
    assert len({line.count("|") for line in lines[:8]}) == 1
    cells = [line.split("|")[7].strip() for line in lines[2:8]]
    assert cells[:3] == ["4,999 the same", "812 the same, all alike", "1,200 are not the same"]
    assert cells[3:] == ["not compared", "", ""]
    assert (
        "- by checksums of 812 to 4,999 batches 2 of 3 that said 'same batches' have the same "
        "(1 make all batches alike); 1 could not be compared"
    ) in lines


def test_only_proofs_that_said_the_same_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"batches": 1, "same": True, "text": ""}
    rows = {
        "birds_watch": row(),
        "chess_queue": row(batches="other order"),
        "faces_dataset": row(diff="", batches=""),
        "flows_feed": {"took_s": 1.0, "failed": "no"},
        "logs_threads": row(whole=known),
    }
    prove.write(rows, tmp_path)
    (tmp_path / "birds_watch.json").write_text(json.dumps(said()))
    asked: list[dict[str, Any]] = []

    def compare(row: Any, found: Any, **options: Any) -> dict[str, Any]:
        asked.append(options)
        assert found == said()
        return {"batches": 7, "same": True, "text": "the first 7 are equal"}

    monkeypatch.setattr(prove, "compare_more", compare)
    monkeypatch.setattr(sys, "argv", ["prove", "--output", str(tmp_path), "--more-batches"])
    prove.main()
    (options,) = asked
    assert options["script"][0] == "birds_watch.py"
    assert options["seconds"] == prove.COMPARED_S
    found = prove.read(tmp_path)
    assert {name: one.get("whole", {}).get("batches") for name, one in found.items()} == {
        **dict.fromkeys(rows),
        "birds_watch": 7,
        "logs_threads": 1,
    }


MADE = """\
import numpy as np


def batches():
    for number in range(1000):
        yield np.full((4, 3), number)
"""
LOOP = """\
import time

from made import batches

import fastfeed

for _batch in fastfeed.watch(batches()):
    time.sleep(0.002)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "same", "text"),
    [
        ("range(0, 1000)", True, "the first 1000 are equal"),
        ("sorted(range(1000), key=lambda n: n == 300)", False, "number 300 is the first"),
    ],
)
def test_batches_behind_those_of_the_proof_are_compared(
    tmp_path: Path, changed: str, same: bool, text: str
) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    (tmp_path / "made.py").write_text(MADE)
    file = SourceFile(tmp_path / "made.py")
    (call,) = file.calls_at(5, "range")
    diff = diff_of([file.replaced(call, changed)], {file.name: file}, base=tmp_path)
    found = compare_more(
        row(diff=diff, before=400.0),
        said("watch", 7),
        script=("train.py",),
        folder=tmp_path,
        environment={},
        seconds=20.0,
    )
    assert COMPARED_BATCHES < found["batches"] == 1000 < prove_batches.MOST_BATCHES
    assert found["same"] is same, found["text"]
    assert text in found["text"]
