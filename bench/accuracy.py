"""Judge all recorded evidence again and count what is right.

    python -m bench.accuracy [--output bench/results]

The evidence lies in tests/scenarios, beside what was measured without the diagnosis. No script
runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import scenarios
from bench.public.command import evidence_path
from bench.public.command import read as public_rows
from bench.public.recipe import FOURTH, FOURTH_HELD, Recipe
from bench.public.recipes import HALVES, RECIPES
from bench.public.score import PERCENT, score
from bench.public.truths import SAME
from bench.results import SCHEMA, write
from bench.rounds import ROOT
from fastfeed.diagnose.evidence_file import read_evidence
from fastfeed.diagnose.judge.judgement import judge
from fastfeed.diagnose.report.json import json_of

KIND = "accuracy"
SCENARIOS = ROOT / "tests" / "scenarios"
PUBLIC = SCENARIOS / "public"
OWN, TRAININGS, PIPELINES = "own", "trainings", "pipelines"
SETS = {
    OWN: "of this project ([tests/scenarios](../tests/scenarios))",
    TRAININGS: "public training scripts ([bench/public](../bench/public))",
    PIPELINES: "public input pipelines, half of them with a simulated accelerator",
}
Row = dict[str, Any]


def own() -> Iterator[Row]:
    """Yield a row for the report of each script of tests/scenarios."""
    folder = SCENARIOS / "evidence"
    for told in scenarios.read(folder / "scenarios.json")["rows"]:
        found = scenarios.judged_again(told, folder)["score"]
        error = found["speedup_percent"]
        yield {
            "set": OWN,
            "script": told["name"],
            "verdict": found["verdict"],
            "right": found["right"],
            "limited": None,
            "speedup": None if error is None else error / 100,
        }


def public() -> Iterator[Row]:
    """Yield a row for each report of each public script that ended with an answer."""
    rows = public_rows(PUBLIC)
    for recipe in RECIPES:
        row = rows.get(recipe.name, {"said": []})
        for turn, recorded in enumerate(row["said"]):
            if "failed" not in recorded:
                said = said_again(recipe, turn)
                found = score(recipe, row["truth"], said)
                pipelines = HALVES[recipe.name] in (FOURTH, FOURTH_HELD)
                yield {
                    "set": PIPELINES if pipelines else TRAININGS,
                    "script": recipe.name,
                    "verdict": found["verdict"],
                    "right": found["right"],
                    "limited": limited(row["truth"]),
                    "speedup": found["speedup"],
                }


def said_again(recipe: Recipe, turn: int) -> Row:
    """Return what the diagnosis says today about the evidence of a public script."""
    kept = read_evidence(evidence_path(PUBLIC, recipe.name, turn))
    said: Row = json_of(judge(kept.evidence, script=kept.script, died=kept.died))
    return said


def limited(truth: dict[str, Any]) -> bool | None:
    """Return True if a ready batch gains in every round, False if in none, None otherwise."""
    gains = [gain >= SAME for gain in truth["range"]["free"]]
    return gains[0] if len(set(gains)) == 1 else None


def table(document: dict[str, Any]) -> str:
    """Return the table of docs/how-it-measures.md."""
    head = ["scripts", "reports", "verdict right", "input is the limit or not"]
    head += ["speed-up without input within 15 %", "same verdict twice"]
    lines = [head, ["---", *["--:"] * (len(head) - 1)]]
    for kind, words in SETS.items():
        rows = [row for row in document["rows"] if row["set"] == kind]
        names = list(dict.fromkeys(row["script"] for row in rows))
        known = [row for row in rows if row["limited"] is not None]
        near = [abs(row["speedup"]) <= PERCENT for row in rows if row["speedup"] is not None]
        pairs = [[row["verdict"] for row in rows if row["script"] == name] for name in names]
        pairs = [pair for pair in pairs if len(pair) > 1]
        lines.append(
            [
                f"{len(names)} {words}",
                str(len(rows)),
                str(sum(row["right"] for row in rows)),
                _of([_says(row) is row["limited"] for row in known]),
                _of(near),
                _of([len(set(pair)) == 1 and None not in pair for pair in pairs]),
            ]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("|  |", "| |")


def _says(row: Row) -> bool | None:
    """Return True if input is the limit by a report; None if it has no verdict."""
    verdict = row["verdict"]
    return None if verdict is None else str(verdict).startswith("input.")


def _of(found: list[bool]) -> str:
    return f"{sum(found)} of {len(found)}" if found else ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.accuracy", description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results")
    given = parser.parse_args()
    document = {"schema": SCHEMA, "kind": KIND, "rows": [*own(), *public()]}
    print(write(document, given.output))


if __name__ == "__main__":
    main()
