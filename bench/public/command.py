"""Measure public scripts and diagnose them: `python -m bench.public`.

    python -m bench.public --half development --checkouts FOLDER --output FOLDER [NAME ...]
    python -m bench.public --list
    python -m bench.public --commands --half development --checkouts FOLDER --output FOLDER

FOLDER of the checkouts has one folder a repository, `OWNER+NAME` (with `@2` for another commit),
at the commits of `--list`. Rounds run all variants in turn; results are added to truths.json after
every round, and a later call takes up what is missing. A diagnosis runs after the first round.
Scripts run one at a time, because timings decide.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from bench.public.prepare import Unprepared, prepare
from bench.public.recipe import (
    DEVELOPMENT,
    FOURTH,
    FOURTH_HELD,
    SECOND,
    TEST,
    THIRD,
    UNMET,
    Recipe,
    Variant,
)
from bench.public.recipes import COMMITS, HALVES, RECIPES
from bench.public.runs import Disturbed, RunFailed, diagnose, rate
from bench.public.score import answers, table
from bench.public.truths import truth

KIND, SCHEMA = "public", 1
# A team of native threads waits for its slowest: 5 % of a core that another process takes costs a
# step of many parallel regions more than the differences that are measured.
FOREIGN_CORES, MOST_FOREIGN_CORES, TRIES = 0.05, 0.2, 2
# Evidence holds names and lines of a script. Where a licence does not allow that, it is anonymous.
PERMISSIVE = ("MIT", "BSD-3-Clause", "Apache-2.0", "Unlicense")
Row = dict[str, Any]


def main() -> None:
    given = _parsed()
    chosen = [
        recipe
        for recipe in RECIPES
        if given.half in (None, HALVES[recipe.name]) and recipe.name in (given.names or HALVES)
    ]
    if given.list:
        print(_listed(chosen))
        return
    if given.report:
        print(report(chosen, given.output))
        return
    if given.commands:
        for recipe in chosen:
            print(_command(recipe, given))
        return
    if given.prepare:
        for recipe in chosen:
            _prepared(recipe, given)
        return
    if given.record:
        for recipe in chosen:
            _record(recipe, given)
        return
    begin = time.monotonic()
    for turn in range(given.rounds):
        for recipe in chosen:
            if time.monotonic() - begin > given.budget:
                print("budget spent", file=sys.stderr)
                return
            _measure(recipe, turn, given)


def _measure(recipe: Recipe, turn: int, given: argparse.Namespace) -> None:
    """Run what is missing of a script's round; the diagnosis follows the first."""
    rows = read(given.output)
    row = rows.setdefault(recipe.name, _row(recipe))
    if given.retry:
        row["failed"] = ""
    if len(row["rounds"]) <= turn and not row["failed"]:
        try:
            row["rounds"].append(_round(recipe, given, changes=turn % 2 == 0))
            row["truth"] = truth([one["steps_per_second"] for one in row["rounds"]])
        except Disturbed as error:
            print(error, file=sys.stderr)
            return
        except (RunFailed, Unprepared) as error:
            row["failed"] = str(error)
        _note(recipe.name, row, given.output)
    if given.diagnose and len(row.setdefault("said", [])) <= turn < len(row["rounds"]):
        row["said"].append(_said(recipe, len(row["said"]), given))
        _note(recipe.name, row, given.output)


def _prepared(recipe: Recipe, given: argparse.Namespace) -> None:
    """Make the data of a script, so that no measurement waits for them."""
    try:
        prepare(recipe, "now", checkouts=given.checkouts, output=given.work)
    except Unprepared as error:
        print(error, file=sys.stderr)


def _record(recipe: Recipe, given: argparse.Namespace) -> None:
    """Diagnose a script until there are `given.record` reports, beside the truth that is there."""
    row = read(given.output).setdefault(recipe.name, _row(recipe))
    row.setdefault("said", [])
    while len(row["said"]) < given.record:
        row["said"].append(_said(recipe, len(row["said"]), given))
        _note(recipe.name, row, given.output)


def _row(recipe: Recipe) -> Row:
    return {"half": HALVES[recipe.name], "rounds": [], "failed": ""}


def _round(recipe: Recipe, given: argparse.Namespace, *, changes: bool) -> Row:
    """Run the variants in turn; those that turn a knob in every other round, to save time."""
    found: Row = {"steps_per_second": {}, "pauses": {}, "foreign": {}}
    for variant, change in recipe.variants.items():
        if variant in recipe.changes and not changes:
            continue
        if variant != "now" and change == Variant():  # there is no input to make ready
            for kind in found:
                found[kind][variant] = found[kind]["now"]
            continue
        one = undisturbed(recipe, variant, given)
        for kind in found:
            found[kind][variant] = one[kind]
    return found


def undisturbed(recipe: Recipe, variant: str, given: argparse.Namespace) -> Row:
    """Run a variant again if other processes took a part of a core; return the quietest run."""
    timing = {"warmup": given.warmup, "seconds": given.seconds}
    tries: list[Row] = []
    while len(tries) < TRIES and all(one["foreign"] > FOREIGN_CORES for one in tries):
        ready = prepare(
            recipe, variant, checkouts=given.checkouts, output=given.work, timing=timing
        )
        tries.append(rate(ready, seconds=given.seconds, warmup=given.warmup))
    best = min(tries, key=lambda one: float(one["foreign"]))
    if best["foreign"] > MOST_FOREIGN_CORES:
        raise Disturbed(f"{recipe.name} {variant}: others took {best['foreign']:.2f} cores")
    return best


def _said(recipe: Recipe, turn: int, given: argparse.Namespace) -> Row:
    ready = prepare(recipe, "now", checkouts=given.checkouts, output=given.work)
    path = evidence_path(given.output, recipe.name, turn)
    hidden = COMMITS[recipe.repository][1] not in PERMISSIVE
    try:
        return diagnose(ready, seconds=given.diagnose_seconds, evidence=path, anonymous=hidden)
    except RunFailed as error:
        return {"failed": str(error)}


def evidence_path(folder: Path, name: str, turn: int) -> Path:
    """Return the file of evidence of a script's report."""
    return folder / "evidence" / f"{name}{f'-{turn}' if turn else ''}.json.gz"


def _note(name: str, row: Row, folder: Path) -> None:
    rows = read(folder)
    rows[name] = row
    write(rows, folder)
    rates = row["rounds"][-1]["steps_per_second"] if row["rounds"] else {}
    foreign = max(row["rounds"][-1].get("foreign", {"": 0.0}).values()) if row["rounds"] else 0.0
    figures = ", ".join(f"{variant} {value:.4g}" for variant, value in rates.items())
    said = row["said"][-1] if row.get("said") else {}
    words = said.get("verdict") or said.get("failed") or ""
    now = time.strftime("%H:%M:%S")
    print(f"{now} {name:22} {figures} (foreign {foreign:.2f}) {words} {row['failed']}", flush=True)


def _command(recipe: Recipe, given: argparse.Namespace) -> str:
    ready = prepare(recipe, "now", checkouts=given.checkouts, output=given.work / "by_hand")
    settings = " ".join(f"{key}='{value}'" for key, value in ready.environment.items() if value)
    script = " ".join(f"'{word}'" if " " in word or "(" in word else word for word in ready.script)
    run = f"env {settings} python -m fastfeed.cli diagnose -- {script}"
    return f"- {recipe.name}: `cd '{ready.folder}' && {run}`"


def report(chosen: list[Recipe], folder: Path) -> str:
    """Return the tables of truths and answers; scripts without figures come last."""
    rows = read(folder)
    found = [(recipe, rows[recipe.name]) for recipe in chosen if recipe.name in rows]
    failed = [f"- {recipe.name}: {row['failed']}" for recipe, row in found if row["failed"]]
    return "\n\n".join([table(found), answers(found), *(["Failed:", *failed] if failed else [])])


def _listed(chosen: list[Recipe]) -> str:
    lines = ["| script | half | framework | kind | repository | commit | licence | path |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for recipe in chosen:
        commit, licence = COMMITS[recipe.repository]
        lines.append(
            f"| {recipe.name} | {HALVES[recipe.name]} | {recipe.framework} | {recipe.kind} "
            f"| {recipe.repository} | {commit[:10]} | {licence} | {recipe.path} |"
        )
    return "\n".join(lines)


def read(folder: Path) -> dict[str, Row]:
    """Return the rows of `folder`/truths.json by name; none if there is no such file."""
    path = folder / "truths.json"
    if not path.exists():
        return {}
    document = json.loads(path.read_text())
    if (document.get("kind"), document.get("schema")) != (KIND, SCHEMA):
        raise ValueError(f"{path}: needed {KIND} of schema {SCHEMA}")
    rows: dict[str, Row] = document["rows"]
    return rows


def write(rows: dict[str, Row], folder: Path) -> None:
    """Write `folder`/truths.json, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "truths.json"
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps({"schema": SCHEMA, "kind": KIND, "rows": rows}, indent=1) + "\n")
    beside.replace(path)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.public")
    parser.add_argument("names", nargs="*", metavar="NAME", help="scripts; all, if none is named")
    sets = (DEVELOPMENT, TEST, SECOND, THIRD, UNMET, FOURTH, FOURTH_HELD)
    parser.add_argument("--half", choices=sets, help="all, if not given")
    parser.add_argument("--checkouts", type=Path, help="folder of OWNER+NAME folders")
    parser.add_argument("--output", type=Path, default=Path("build/public"))
    parser.add_argument("--work", type=Path, help="folder of the copies that run")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all variants")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a run, without start")
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds that do not count")
    parser.add_argument("--diagnose", action="store_true", help="diagnose after every round")
    parser.add_argument(
        "--record", type=int, default=0, metavar="N", help="run nothing but N diagnoses of each"
    )
    parser.add_argument("--diagnose-seconds", type=float, default=12.0)
    parser.add_argument("--budget", type=float, default=1e9, help="start no script after that, s")
    parser.add_argument("--list", action="store_true", help="print the scripts and their halves")
    parser.add_argument("--prepare", action="store_true", help="make all data, run nothing")
    parser.add_argument("--retry", action="store_true", help="run scripts again that failed")
    parser.add_argument("--report", action="store_true", help="print tables of what was measured")
    parser.add_argument("--commands", action="store_true", help="prepare copies, print commands")
    given = parser.parse_args()
    given.output = given.output.resolve()
    given.work = (given.work or given.output / "work").resolve()
    unknown = set(given.names) - {recipe.name for recipe in RECIPES}
    if unknown:
        parser.error(f"no such script: {', '.join(sorted(unknown))}; --list names all")
    if not (given.list or given.report) and given.checkouts is None:
        parser.error("--checkouts: needed a folder of checkouts of the repositories of --list")
    return given
