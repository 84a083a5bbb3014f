"""CPU time of the thread that watches a job: `python -m bench.observer [--output build/observer]`.

A loop takes 100 batches of 8 records a second from each number of producers, with the black box as
it is by default. The kernel's clock of the thread, over the time that passed, is its share of a
core.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.results import SCHEMA, machine, write
from fastfeed import FeedRunner

KIND = "observer"
THREAD = "fastfeed-jobs"
SETTINGS = {"2 threads": {"threads": 2}}
SETTINGS |= {f"{count} processes": {"processes": count} for count in (2, 8)}
STEP_S, WARM_S = 0.01, 2.0


def records(worker: Any) -> Any:
    while True:
        yield np.zeros((8, 28, 28), np.float32)


def spent() -> float:
    """Return the CPU seconds of the thread that watches, by the scheduler."""
    thread = next(one for one in threading.enumerate() if one.name == THREAD)
    return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]) / 1e9


def share(options: dict[str, int], seconds: float) -> float:
    """Return the share of one core that the thread takes beside a loop."""
    with FeedRunner(records, **options) as runner:  # type: ignore[arg-type]
        batches = iter(runner)

        def steps(seconds: float) -> float:
            begin, before = time.perf_counter(), spent()
            while time.perf_counter() - begin < seconds:
                next(batches)
                time.sleep(STEP_S)
            return (spent() - before) / (time.perf_counter() - begin)

        next(batches)
        steps(WARM_S)
        return steps(seconds)


def table(document: dict[str, Any]) -> str:
    """Return the table of docs/jobs.md."""
    lines = ["| producers | share of a core |", "|---|---|"]
    for name, shares in document["shares"].items():
        found = [100 * one for one in (statistics.median(shares), min(shares), max(shares))]
        lines.append("| {} | {:.2f} % ({:.2f} to {:.2f}) |".format(name, *found))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.observer", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--output", type=Path, default=Path("build/observer"))
    given = parser.parse_args()
    shares: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for _ in range(given.rounds):
        for name, options in SETTINGS.items():
            shares[name].append(share(options, given.seconds))
    document = {"schema": SCHEMA, "kind": KIND, "machine": machine(), "shares": shares}
    print(write(document, given.output))


if __name__ == "__main__":
    main()
