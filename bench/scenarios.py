"""Accuracy of the diagnosis on labelled training scripts.

Every script of tests/scenarios/ is measured (slow, fixed by hand, with its input at hand), then
diagnosed, and the answers are compared with the truth.

    python -m bench.scenarios [NAME ...] [--seconds 6] [--repeats 1]
                              [--truth-from FILE] [--truth-only] [--evidence FOLDER]
                              [--output build/scenarios]
    python -m bench.scenarios --replay tests/scenarios/evidence

Scripts run one at a time, because timings decide. The table is Markdown, the figures are in
scenarios.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from bench.results import machine
from bench.scenarios_runs import Failed, diagnose, slowed, truth_of
from bench.scenarios_score import holds, markdown, score
from fastfeed.diagnose.evidence_file import read_evidence
from fastfeed.diagnose.judge.judgement import judge
from fastfeed.diagnose.report.json import json_of
from tests.scenarios.labels import LABELS

SCHEMA, KIND = 1, "scenarios"


def main() -> None:
    given = _parsed()
    if given.replay:
        print(markdown(replayed(given.replay)))
        return
    names = given.names or list(LABELS)
    before = read(given.truth_from)["rows"] if given.truth_from else []
    truths = {row["name"]: row["truth"] for row in before}
    rows: list[dict[str, Any]] = []
    for name in names:
        rows.append(_row(name, given, known=truths.get(name)))
        write(rows, given.output)
        print(_line(rows[-1]), file=sys.stderr, flush=True)
    print(markdown(rows))


def replayed(folder: Path) -> list[dict[str, Any]]:
    """Judge the evidence in a folder again, and compare it with the truths beside it."""
    return [judged_again(row, folder) for row in read(folder / "scenarios.json")["rows"]]


def judged_again(row: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the row of a script with today's answer and its score."""
    found = read_evidence(folder / f"{row['name']}.json.gz")
    said = json_of(judge(found.evidence, script=found.script, died=found.died))
    return {**row, "said": said, "score": score(LABELS[row["name"]], row["truth"], said)}


def _row(name: str, given: argparse.Namespace, *, known: dict[str, Any] | None) -> dict[str, Any]:
    label = LABELS[name]
    row: dict[str, Any] = {"name": name, "code": label.code, "failed": ""}

    def said() -> None:
        if not given.truth_only:
            row["said"] = diagnose(name, seconds=given.diagnose_seconds, evidence=given.evidence)

    try:
        if known:
            said()
        row["truth"] = known or truth_of(
            name, seconds=given.seconds, repeats=given.repeats, midway=said
        )
        row["doubts"] = holds(label, row["truth"])
        if not given.truth_only:
            row["score"] = score(label, row["truth"], row["said"])
            if label.code == "step.bound" and given.pairs:
                row["score"]["slowed"] = slowed(
                    name, seconds=given.diagnose_seconds, pairs=given.pairs
                )
    except Failed as error:
        row["failed"] = str(error)
    return row


def _line(row: dict[str, Any]) -> str:
    truth = row.get("truth", {})
    figures = [
        f"{kind} {truth[kind]['steps_per_second']:.1f}"
        for kind in ("slow", "fixed", "free")
        if truth.get(kind)
    ]
    said = f"said {row['said'].get('verdict')}" if "said" in row else ""
    doubts = "; ".join(row.get("doubts", []))
    return f"{row['name']:20} {row['code']:21} {', '.join(figures)} {said} {doubts} {row['failed']}"


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.scenarios", description=__doc__.splitlines()[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios; all, if none is named")
    parser.add_argument(
        "--seconds",
        type=float,
        default=6.0,
        help="length of one run for the truth, warm-up excluded",
    )
    parser.add_argument("--repeats", type=int, default=1, help="rounds of the three variants")
    parser.add_argument(
        "--pairs", type=int, default=1, help="pairs of runs, with and without the diagnosis"
    )
    parser.add_argument(
        "--diagnose-seconds", type=float, default=20.0, help="what the diagnosis is given"
    )
    parser.add_argument(
        "--truth-from", type=Path, help="take the truths of this scenarios.json where it has them"
    )
    parser.add_argument("--truth-only", action="store_true", help="no diagnosis")
    parser.add_argument(
        "--evidence", type=Path, metavar="FOLDER", help="keep the evidence of every diagnosis"
    )
    parser.add_argument(
        "--replay", type=Path, metavar="FOLDER", help="judge the evidence of this folder again"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("build/scenarios"), help="folder of scenarios.json"
    )
    given = parser.parse_args()
    unknown = sorted(set(given.names) - set(LABELS))
    if unknown:
        parser.error(f"no such scenario: {', '.join(unknown)}; there are {', '.join(LABELS)}")
    return given


def write(rows: list[dict[str, Any]], folder: Path) -> Path:
    """`folder`/scenarios.json, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{KIND}.json"
    document = {"schema": SCHEMA, "kind": KIND, "machine": machine(), "rows": rows}
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(document, indent=1) + "\n")
    beside.replace(path)
    return path


def read(path: Path) -> dict[str, Any]:
    """A document that `write` wrote; ValueError for another kind or schema."""
    document: dict[str, Any] = json.loads(path.read_text())
    if (document.get("kind"), document.get("schema")) != (KIND, SCHEMA):
        raise ValueError(f"{path}: needed {KIND} of schema {SCHEMA}")
    return document


if __name__ == "__main__":
    main()
