"""Checksums of many more batches than a proof compares, of a script with and without its patch."""

from __future__ import annotations

import difflib
import itertools
import math
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fastfeed.diagnose.patches.proposal import PatchCase
from fastfeed.diagnose.patches.serial_loop import MADE_AHEAD, SerialLoop, shown_by_loop
from fastfeed.diagnose.patches.source_file import Edit, SourceFile
from fastfeed.diagnose.proof import SAME, UNKNOWN
from fastfeed.diagnose.prove.digests import compared
from fastfeed.diagnose.prove.prove_command import marks_of
from fastfeed.diagnose.prove.trial import Result, Trials
from fastfeed.diagnose.prove.workspace import Workspace
from fastfeed.diagnose.run.script import Script

MOST_BATCHES = 5_000
LEAST_S, SPARE = 3.0, 1.3  # of a run that is to make so many: checksums take time, too
Row = dict[str, Any]


def compare_more(
    row: Row,
    said: Row,
    *,
    script: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    seconds: float,
) -> Row:
    """Return what the batches of a patched script are, which are compared with those of the script
    as it is: MOST_BATCHES, or as many as both make in `seconds`.

    `row`: its proof; `said`: the diagnosis of that.
    """
    with tempfile.TemporaryDirectory() as scratch:
        before = Path.cwd()
        os.chdir(folder)
        try:
            workspace = Workspace(Script(script), scratch=Path(scratch), environment=environment)
        finally:
            os.chdir(before)
        case = case_of(said, workspace.sources)
        marks = marks_of(case)
        patch = edits_of(row["diff"], workspace.sources, base=workspace.base)
        trials = Trials(workspace, seconds=seconds, end_s=math.inf, most_batches=MOST_BATCHES)
        limit_s = min(seconds, max(LEAST_S, SPARE * MOST_BATCHES / row["before"]))

        def compare(shows: tuple[Edit, ...]) -> Row:
            def run(*edits: Edit) -> Result:
                return trials.batches((*marks, *edits, *shows), seconds=limit_s)

            return told(run(), run(*patch), again=run)

        found = compare(shows_of(case, row))
        unseen = found["same"] is None and (shows := shown_by_loop(case))
        return compare(shows) if unseen else found


def told(before: Result, after: Result, *, again: Callable[[], Result]) -> Row:
    """Return how many batches were compared, how many of these are `distinct`, whether they are the
    same (None: it is unknown), and what is to say of it. `again` runs the script as it is once
    more."""
    if before.failed or after.failed:
        whose = "as it is" if before.failed else "with the patch"
        return uncompared(f"{whose}: {before.failed or after.failed}")
    one, two = before.digests, after.digests
    found = compared(one, two)
    if found.word == UNKNOWN:
        return uncompared(found.text)
    count, text = min(len(one.leaves), len(two.leaves)), found.text
    if found.word != SAME:
        pairs = zip(one.leaves, two.leaves, strict=False)
        first = next(number for number, (a, b) in enumerate(pairs) if a != b)
        text = f"{found.word}: {text}, number {first} is the first"
        if compared(one, again().digests).word != SAME:
            text += "; two runs of the script as it is differ, too"
    distinct = len(set(map(tuple, one.leaves[:count])))  # 1: their order cannot be seen
    return {"batches": count, "distinct": distinct, "same": found.word == SAME, "text": text}


def uncompared(why: str) -> Row:
    """Return what is told of batches that could not be compared."""
    return {"batches": 0, "distinct": 0, "same": None, "text": why}


def case_of(said: Row, files: Mapping[str, SourceFile]) -> PatchCase:
    """Return what a diagnosis in JSON says of the loop and the lines that make its input, without
    its advice."""
    lines = [one["place"].rpartition(":")[2] for one in said["parts"] if one["kind"] == "input"]
    parts = [SimpleNamespace(place=SimpleNamespace(line=int(one))) for one in lines]
    seen = SimpleNamespace(
        loop=SimpleNamespace(**said["loop"], text="") if said["loop"] else None,
        machine=SimpleNamespace(cores=said["machine"]["cores"]),
        parts_of=lambda kind: parts,
    )
    diagnosis: Any = SimpleNamespace(evidence=seen, recommendations=(), may_cost=())
    return PatchCase(diagnosis, files=files, calls=(), script="")


def shows_of(case: PatchCase, row: Row) -> tuple[Edit, ...]:
    """Return the edits that show the batches of the loop, as in the proof; none if it kept no
    change that needs them."""
    if not any(one["kept"] and one["title"].endswith(MADE_AHEAD) for one in row["tried"]):
        return ()
    return next((one.shows for one in SerialLoop().proposals(case)), ())


def edits_of(diff: str, files: Mapping[str, SourceFile], *, base: Path) -> list[Edit]:
    """Return a diff of files below `base` as edits of whole lines."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        texts = {one: files[str(base / one)].text for one in re.findall("(?m)^--- a/(.*)$", diff)}
        for name, text in texts.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        subprocess.run(["git", "apply", "-"], input=diff.encode(), cwd=folder, check=True)
        for name, text in texts.items():
            patched = (Path(folder) / name).read_bytes().decode()
            one, two = (of.splitlines(keepends=True) for of in (text, patched))
            starts = [0, *itertools.accumulate(map(len, one))]
            matcher = difflib.SequenceMatcher(None, one, two, autojunk=False)
            for tag, begin, end, first, last in matcher.get_opcodes():
                if tag != "equal":
                    lines = "".join(two[first:last])
                    found.append(Edit(str(base / name), starts[begin], starts[end], lines))
    return found
