"""Every call of a producer fails, once and for good: `python -m bench.anomalies [--step N]`.

For each source, for threads and for worker processes, the n-th call that asks the system for
memory, a descriptor or a thread, or that talks to the trainer, fails for n = 1, 2, 3 ... A run must
end with all its records, or with an error that names its cause. Exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import logging
import os
import threading
import warnings
from collections import Counter

from tests.faults.anomalies import PROMISE_S, SOURCES, faulty_server, impatient, injected, points

MIXES = ((0, 1), (0, 2), (1, 1), (2, 1), (1, 2))  # processes, threads


def main() -> int:
    """Run all points. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step", type=int, default=1, help="try every STEP-th call")
    step = parser.parse_args().step
    os.environ["FASTFEED_BLACKBOX"] = "0"
    warnings.simplefilter("ignore")
    logging.disable()
    threading.excepthook = lambda _: None
    total: Counter[str] = Counter()
    print(
        "| source | producers | points | complete | error | wrong | slow |",
        "|---|---|---|---|---|---|---|",
        sep="\n",
    )
    with impatient(), faulty_server() as server:
        for source in SOURCES:
            for processes, threads in MIXES:
                options = {"processes": processes, "threads": threads}
                faulty = server.fault if processes else injected
                found: Counter[str] = Counter()
                for fault, ending in points(source, options, faulty, step=step):
                    found["points"] += 1
                    found["wrong" if ending.wrong else ending.how] += 1
                    found["slow"] += ending.seconds > PROMISE_S
                    if ending.wrong:
                        print(f"{source} {options} {fault}: {ending.wrong}")
                total += found
                _print(source, f"{processes} x {threads}" if processes else f"{threads}", found)
    _print("all", "", total)
    return int(bool(total["wrong"]))


def _print(source: str, producers: str, found: Counter[str]) -> None:
    counts = " | ".join(str(found[key]) for key in ("points", "complete", "error", "wrong", "slow"))
    print(f"| {source} | {producers} | {counts} |", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
