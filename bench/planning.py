"""What `fastfeed plan` predicts beside what then runs: steps/s and memory.

    python -m bench.planning [--repeats 3] [--output build/planning]

Every round plans from a fresh profile, and then runs each setting in a process of its own. Rounds
are added to those that the folder already has. A profile or a run during which other programs took
more than a fifth of a core is repeated, at most twice, whatever it found.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from bench.results import RESULT_MARK, machine
from bench.rounds import QUIET, ROOT
from fastfeed.benchmark.consumers import consumer_from
from fastfeed.benchmark.measure import measure_loop
from fastfeed.benchmark.workloads import workload_from
from fastfeed.model.workload import Producers
from fastfeed.plan.planned_feed import SHOWN

KIND, SCHEMA = "planning", 1
WORKLOADS = (("opencv:10ms", 32), ("sleep:80ms", 256))
TRAIN = "mnist"
SECONDS, TIMEOUT_S = 1.5, 120
MAX_OTHERS, ATTEMPTS = 0.2, 3  # cores that other programs may take during a run, and repetitions
GOALS = {"rate": 0.15, "memory": 0.10}
MB = 1e6


def run_cell(workload: str, batch: int, producers: Producers) -> dict[str, float]:
    """Steps/s, starvation and the memory of the whole tree of one setting, in this process."""
    source, consumer = workload_from(workload, batch_size=batch), consumer_from(TRAIN)
    with consumer.loop(source.source, producers=producers, batch_size=batch) as loop:
        window = measure_loop(loop, seconds=SECONDS)
        return {
            "rate": window.rate,
            "starvation": window.starvation,
            "memory": float(window.memory_nbytes),
        }


def in_process(*words: str) -> str:
    """The output of a fresh interpreter."""
    environment = QUIET | os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *words],
        env=environment,
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    ).stdout


def undisturbed(*words: str) -> tuple[str, float]:
    """The output of a fresh interpreter, and the cores that other programs took meanwhile: of
    several attempts the least disturbed one."""
    found = []
    for _ in range(ATTEMPTS):
        busy, own, start = busy_s(), children_s(), time.perf_counter()
        output = in_process(*words)
        wall_s = time.perf_counter() - start
        others = max(0.0, (busy_s() - busy) - (children_s() - own)) / wall_s
        found.append((others, output))
        if others <= MAX_OTHERS:
            break
    others, output = min(found)
    return output, others


def busy_s() -> float:
    """Core seconds of all programs of the machine, and those that its host took."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def children_s() -> float:
    """Core seconds of the children that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def planned(workload: str, batch: int) -> dict[Producers, dict[str, float]]:
    """The predictions of the command, by the producers."""
    with TemporaryDirectory() as folder:
        words = f"plan --workload {workload} --train {TRAIN} --batch-size {batch} --output {folder}"
        _, others = undisturbed("-c", "from fastfeed.cli import main; main()", *words.split())
        found = json.loads((Path(folder) / "plan.json").read_text())
    trainer = found["figures"]["trainer"]["value"]
    return {
        Producers(one["producers"]["threads"], one["producers"]["processes"]): {
            "rate": one["prediction"]["rate"],
            "memory": sum(one["memory"].values()),
            "trainer": trainer,
            "others": others,
        }
        for one in found["settings"]
    }


def one_round(turn: int) -> Iterator[dict[str, Any]]:
    """Every setting once: its prediction and its run."""
    for workload, batch in WORKLOADS:
        predicted = planned(workload, batch)
        every = list(predicted)
        shift = turn * len(every) // 3
        for producers in every[shift:] + every[:shift]:
            spec = json.dumps([workload, batch, producers.threads, producers.processes])
            output, others = undisturbed("-m", "bench.planning", "--cell", spec)
            lines = output.splitlines()
            result = next(line for line in lines if line.startswith(RESULT_MARK))
            yield {
                "workload": workload,
                "threads": producers.threads,
                "processes": producers.processes,
                "planned": predicted[producers],
                "measured": json.loads(result.removeprefix(RESULT_MARK)) | {"others": others},
            }


def table(document: dict[str, Any]) -> str:
    """The medians of the runs that no other program disturbed, in the profile or in the run, as
    Markdown: steps/s and MB, with the spread of the runs."""
    lines = [
        "| workload | producers | runs | steps/s planned | measured | error | MB planned "
        "| measured | error | MB of the feed planned | measured |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    rows = [row for rows in document["rounds"] for row in rows]
    groups: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for row in filter(quiet, rows):
        groups.setdefault((row["workload"], row["processes"], row["threads"]), []).append(row)
    for workload, _ in WORKLOADS:
        for producers in (*(Producers(n) for n in SHOWN), *(Producers(1, n) for n in SHOWN)):
            runs = groups.get((workload, producers.processes, producers.threads), [])
            if runs:
                lines.append(f"| {workload} | {producers} | {_cells(runs)} |")
    return "\n".join(lines)


def quiet(row: dict[str, Any]) -> bool:
    """Whether other programs took less than MAX_OTHERS in the profile and in the run."""
    return all(row[kind].get("others", 0.0) <= MAX_OTHERS for kind in ("planned", "measured"))


def _cells(runs: list[dict[str, Any]]) -> str:
    cells = [str(len(runs))]
    for name, scale, form in (("rate", 1.0, ".1f"), ("memory", MB, ".0f")):
        plans = [run["planned"][name] / scale for run in runs]
        found = [run["measured"][name] / scale for run in runs]
        error = median(plans) / median(found) - 1
        missed = "**" if abs(error) > GOALS[name] else ""
        spread = f"{median(found):{form}} ({min(found):{form}} to {max(found):{form}})"
        cells += [f"{median(plans):{form}}", spread, f"{missed}{error:+.0%}{missed}"]
    for kind in ("planned", "measured"):
        grown = median((run[kind]["memory"] - run["planned"]["trainer"]) / MB for run in runs)
        cells.append(f"{grown:.0f}")
    return " | ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / KIND)
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.cell:
        workload, batch, threads, processes = json.loads(given.cell)
        print(RESULT_MARK + json.dumps(run_cell(workload, batch, Producers(threads, processes))))
        return
    path = given.output / f"{KIND}.json"
    given.output.mkdir(parents=True, exist_ok=True)
    document = {"schema": SCHEMA, "kind": KIND, "machine": machine(), "rounds": []}
    if path.exists():
        document = json.loads(path.read_text())
    for _ in range(given.repeats):
        turn, rows = len(document["rounds"]), []
        document["rounds"].append(rows)
        for row in one_round(turn):
            rows.append(row)
            path.write_text(json.dumps(document, indent=1) + "\n")
            print(row, file=sys.stderr, flush=True)
    print(table(document))


if __name__ == "__main__":
    main()
