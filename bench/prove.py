"""Proofs of scripts that are labelled, or public: `python -m bench.prove`.

    python -m bench.prove --output FOLDER [NAME ...]                     tests/scenarios
    python -m bench.prove --output FOLDER --half fourth --checkouts FOLDER [NAME ...]
    python -m bench.prove --output FOLDER ... --by-hand
    python -m bench.prove --output FOLDER ... --more-batches
    python -m bench.prove --output FOLDER --report [--json bench/results/proving.json]

Each script is proven with `fastfeed diagnose --prove`; its answer is added to proofs.json. With
`--by-hand`, the scripts whose gain was proven run with and without the patch in turn, without any
watch, by their own clocks. With `--more-batches`, those whose proof says "same batches" run with
and without the patch for the checksums of MOST_BATCHES, or of what both make in `--seconds`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from bench.prove_batches import compare_more, uncompared
from bench.public.prepare import Prepared, Unprepared, prepare
from bench.public.recipe import Recipe
from bench.public.recipes import HALVES, RECIPES
from bench.public.runs import FASTFEED, execute, rate
from fastfeed.diagnose.proof import SAME
from fastfeed.errors import FeedError
from tests.scenarios.labels import LABELS

ROOT = Path(__file__).resolve().parents[1]
SCENARIOS = ROOT / "tests" / "scenarios"
GRACE_S, END_S = 120.0, 10.0
ROUNDS, WARMUP_S = 2, 2.0  # by hand
DIAGNOSED_S, COMPARED_S = 12.0, 60.0
ENDLESS = ("--seconds", "600")  # of a labelled script
Row = dict[str, Any]


def main() -> None:
    given = _parsed()
    if given.report:
        print(table(read(given.output)))
        if given.json:
            found = {name: result(row) for name, row in read(given.output).items()}
            text = json.dumps(found, indent=1)
            given.json.write_text(text + "\n")
        return
    if given.by_hand:
        _measure_by_hand(given)
        return
    if given.more_batches:
        _compare_more_batches(given)
        return
    for name in given.names or _names(given):
        rows = read(given.output)
        if name not in rows:
            rows[name] = _proven(name, given)
            write(rows, given.output)
            row = rows[name]
            said = row.get("sentence") or row.get("failed", "")
            print(
                f"{time.strftime('%H:%M:%S')} {name:22} {row['took_s']:.0f} s: {said}", flush=True
            )


def _names(given: argparse.Namespace) -> list[str]:
    if given.half:
        return [one.name for one in RECIPES if HALVES[one.name] == given.half]
    return [name for name, label in LABELS.items() if not label.dies]


def _recipe(name: str) -> Recipe:
    return next(one for one in RECIPES if one.name == name)


def _proven(name: str, given: argparse.Namespace) -> Row:
    """Return what a proof of a script says."""
    begin = time.monotonic()
    out = given.output.resolve() / f"{name}.json"
    out.unlink(missing_ok=True)
    options = ["--prove", "--budget", f"{given.budget:g}", "--json", str(out)]
    options += ["--seconds", f"{given.seconds:g}"]
    try:
        if given.half:
            ready = prepare(_recipe(name), "now", checkouts=given.checkouts, output=given.work)
            begin = time.monotonic()  # its data are written
            code, words, _ = execute(
                [*FASTFEED, "diagnose", *options, "--", *ready.script],
                ready,
                given.budget + GRACE_S,
            )
        else:
            command = [*FASTFEED, "diagnose", *options, "--", f"{name}.py", *ENDLESS]
            done = subprocess.run(
                command,
                cwd=SCENARIOS,
                capture_output=True,
                text=True,
                timeout=given.budget + GRACE_S,
            )
            code, words = done.returncode, done.stderr[-300:]
    except (Unprepared, subprocess.TimeoutExpired) as error:
        code, words = -1, str(error)
    row: Row = {"code": code, "took_s": time.monotonic() - begin}
    if not out.exists():
        return {**row, "failed": words}
    said = json.loads(out.read_text())
    kept = ("verdict", "lost_to_input", "speedup_if_input_free")
    return {**row, **said["proof"], **{key: said[key] for key in kept}}


def _measure_by_hand(given: argparse.Namespace) -> None:
    rows = read(given.output)
    for name in given.names or [one for one in _names(given) if one in rows]:
        if rows[name].get("diff") and "by_hand" not in rows[name]:
            with tempfile.TemporaryDirectory() as folder:
                rates = _rates(name, rows[name]["diff"], given, Path(folder))
            rows[name]["by_hand"] = [after / before for before, after in rates]
            write(rows, given.output)
            print(f"{time.strftime('%H:%M:%S')} {name:22} {rows[name]['by_hand']}", flush=True)


def _rates(
    name: str, diff: str, given: argparse.Namespace, folder: Path
) -> list[tuple[float, float]]:
    """Return pairs of steps/s, without and with a patch."""
    runs = []
    for patched in (False, True):
        if given.half:
            work = folder / str(patched)
            ready = prepare(
                _recipe(name),
                "now",
                checkouts=given.checkouts,
                output=work,
                timing={"warmup": WARMUP_S, "seconds": given.seconds},
            )
            at = ready.folder
            runs.append(partial(_public_rate, ready, given.seconds))
        else:
            at = folder / str(patched) / SCENARIOS.relative_to(ROOT)
            names = shutil.ignore_patterns("evidence", "public", "__pycache__")
            shutil.copytree(SCENARIOS, at, ignore=names)
            (folder / str(patched) / ".git").mkdir()
            runs.append(partial(_own_rate, at, name, given.seconds))
        if patched:
            tree = next(one for one in (at, *at.parents) if (one / ".git").exists())  # of a diff
            subprocess.run(["git", "apply", "-"], input=diff.encode(), cwd=tree, check=True)
    before, after = runs
    return [(before(), after()) for _ in range(ROUNDS)]


def _public_rate(ready: Prepared, seconds: float) -> float:
    found: float = rate(ready, seconds=seconds, warmup=WARMUP_S)["steps_per_second"]
    return found


def _own_rate(folder: Path, name: str, seconds: float) -> float:
    """Return the steps/s that a labelled script says. Keras may keep one from its end."""
    command = [sys.executable, f"{name}.py", "--seconds", f"{seconds:g}"]
    run = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    limit = threading.Timer(seconds + GRACE_S, os.killpg, (run.pid, signal.SIGKILL))
    limit.start()
    try:
        said = next((line for line in run.stdout or () if line.startswith("{")), "")
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(END_S)
    finally:
        limit.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)  # with what it has started
        run.communicate()
    if not said:
        raise subprocess.CalledProcessError(run.returncode, command)
    return float(json.loads(said)["steps_per_second"])


def _compare_more_batches(given: argparse.Namespace) -> None:
    rows = read(given.output)
    for name in given.names or [one for one in _names(given) if one in rows]:
        row = rows[name]
        if row.get("diff") and row["batches"] == SAME and "whole" not in row:
            with tempfile.TemporaryDirectory() as folder:
                row["whole"] = _whole(name, row, given, Path(folder))
            write(rows, given.output)
            print(f"{time.strftime('%H:%M:%S')} {name:22} {row['whole']}", flush=True)


def _whole(name: str, row: Row, given: argparse.Namespace, folder: Path) -> Row:
    """Return what more batches of a script with its patch are."""
    said = json.loads((given.output / f"{name}.json").read_text())
    compare = partial(compare_more, row, said, seconds=given.seconds)
    try:
        if given.half:
            ready = prepare(_recipe(name), "now", checkouts=given.checkouts, output=folder)
            at, environment = ready.folder, ready.environment
            return compare(script=ready.script, folder=at, environment=environment)
        return compare(script=(f"{name}.py", *ENDLESS), folder=SCENARIOS, environment={})
    except (Unprepared, FeedError, subprocess.CalledProcessError) as error:
        return uncompared(str(error))


def table(rows: dict[str, Row]) -> str:
    """Return all proofs and their sums, as Markdown."""
    lines = [
        "| script | lost to input | proven | predicted | by hand | batches | more batches | kept "
        "| tried | s |",
        "|---|--:|---|---|---|---|---|---|--:|--:|",
    ]
    for name, row in rows.items():
        took = f"{row['took_s']:.0f} |"
        if "tried" not in row:
            lines.append(f"| {name} | | failed: {row['failed'][:80]} | | | | | | | {took}")
            continue
        found = result(row)
        (low, high), told = row["interval"], found["predicted_interval"]
        gain = f"{row['speedup']:.2f} ({low:.2f}-{high:.2f})" if row["diff"] else ""
        again = " ".join(f"{one:.2f}" for one in found["by_hand"])
        lines.append(
            f"| {name} | {100 * row['lost_to_input']:.0f} % | {gain} "
            f"| {'' if told is None else f'{told[0]:.2f}-{told[1]:.2f}'} | {again} "
            f"| {row['batches']} | {_more(row)} | {'; '.join(found['kept'])} "
            f"| {len(row['tried'])} | {took}"
        )
    return "\n".join([*lines, "", *sums([row for row in rows.values() if "tried" in row])])


def result(row: Row) -> Row:
    """Return what is kept of a proof, beside the whole answer."""
    tried = row.get("tried", [])
    kept = [one for one in tried if one["kept"]]
    told, interval = None, None
    if len(kept) == 1 and kept[0]["predicted_interval"]:
        told = round(kept[0]["predicted"], 3)
        interval = [round(one, 3) for one in kept[0]["predicted_interval"]]
    return {
        "lost_to_input": round(row.get("lost_to_input", 0.0), 3),
        "kept": [one["title"] for one in kept],
        "speedup": round(row.get("speedup", 1.0), 3),
        "interval": [round(one, 3) for one in row.get("interval", (1.0, 1.0))],
        "predicted": told,
        "predicted_interval": interval,
        "batches": row.get("batches", ""),
        "by_hand": [round(one, 3) for one in row.get("by_hand", ())],
        "tried": len(tried),
        "took_s": round(row["took_s"], 1),
        **({"failed": row["failed"]} if "failed" in row else {}),
    }


def _more(row: Row) -> str:
    """Return what was found of more batches of a script."""
    if "whole" not in row:
        return ""
    whole = row["whole"]
    if whole["same"] is None:
        return "not compared"
    alike = ", all alike" if whole["distinct"] == 1 else ""
    return f"{whole['batches']:,} {'the same' if whole['same'] else 'are not the same'}{alike}"


def _sum_of_more(wholes: list[Row]) -> str:
    seen = [one for one in wholes if one["same"] is not None]
    counts = [one["batches"] for one in seen] or [0]
    same = [one for one in seen if one["same"]]
    return (
        f"- by checksums of {min(counts):,} to {max(counts):,} batches {len(same)} of {len(seen)} "
        f"that said '{SAME}' have the same ({sum(one['distinct'] == 1 for one in same)} make all "
        f"batches alike); {len(wholes) - len(seen)} could not be compared"
    )


def sums(rows: list[Row]) -> list[str]:
    """Return the sums as list items."""
    need = [row for row in rows if row["lost_to_input"] >= 0.1]
    tried = [one for row in rows for one in row["tried"]]
    ran = [one for one in tried if one["speedup"] is not None]
    told = [one for one in ran if one["predicted_interval"] and one["kept"]]
    inside = [
        one["predicted_interval"][0] <= one["speedup"] <= one["predicted_interval"][1]
        for one in told
    ]
    gains = [row["speedup"] for row in rows if row["diff"]]
    again = [statistics.median(row["by_hand"]) for row in rows if "by_hand" in row]
    middle = statistics.median(gains) if gains else 1.0
    return [
        f"- a patch ran for {sum(bool(row['tried']) for row in need)} of {len(need)} scripts that "
        "lose 10 % or more to input",
        f"- of the patches {len(ran)} of {len(tried)} ran",
        f"- something was proven for {len(gains)} of {len(rows)}, {middle:.2f}x (median)",
        f"- the measured gain is inside the predicted interval for {sum(inside)} of {len(inside)}",
        f"- by hand {sum(one > 1 for one in again)} of {len(again)} gain again",
        _sum_of_more([row["whole"] for row in rows if "whole" in row]),
        f"- most seconds: {max((row['took_s'] for row in rows), default=0.0):.0f}",
    ]


def read(folder: Path) -> dict[str, Row]:
    """Return the rows of `folder`/proofs.json by name."""
    path = folder / "proofs.json"
    rows: dict[str, Row] = json.loads(path.read_text()) if path.exists() else {}
    return rows


def write(rows: dict[str, Row], folder: Path) -> None:
    """Write `folder`/proofs.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "proofs.json").write_text(json.dumps(rows, indent=1) + "\n")


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.prove")
    parser.add_argument("names", nargs="*", metavar="NAME", help="scripts; all, if none is named")
    parser.add_argument("--half", help="public scripts of this half; else tests/scenarios")
    parser.add_argument("--checkouts", type=Path, help="folder of OWNER+NAME folders")
    parser.add_argument("--output", type=Path, default=Path("build/prove"))
    parser.add_argument("--work", type=Path, help="folder of the copies that run")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds of a proof")
    seconds = f"of a diagnosis ({DIAGNOSED_S:g}), or of each run for checksums ({COMPARED_S:g})"
    parser.add_argument("--seconds", type=float, help=seconds)
    parser.add_argument("--by-hand", action="store_true", help="measure the patches by hand")
    parser.add_argument(
        "--more-batches", action="store_true", help="compare more batches than the proofs did"
    )
    parser.add_argument("--report", action="store_true", help="print what was measured")
    parser.add_argument("--json", type=Path, help="file for what is kept of it")
    given = parser.parse_args()
    given.seconds = given.seconds or (COMPARED_S if given.more_batches else DIAGNOSED_S)
    given.work = (given.work or given.output / "work").resolve()
    given.output.mkdir(parents=True, exist_ok=True)
    return given


if __name__ == "__main__":
    main()
