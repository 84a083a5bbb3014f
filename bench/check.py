"""Has anything become slower? Ratios of fastfeed to yardsticks of the same run, against the
committed reference.

    python -m bench.check [--seconds 600] [--record]

A round in which other programs take a quarter of a core does not count: their load changes the
ratios. If none counts, nothing is judged.

A yardstick is code that fastfeed does not contain: a memcpy, a hand-made ring, a queue of
TensorFlow. Both run in turn, each in a fresh process, round after round until the time is over. A
case has lost if every one of its rounds is more than 15 % below the lowest of the reference.
`--record` writes the reference.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from tqdm import tqdm

from bench.peers import PEERS
from bench.rounds import RunFailed, run
from bench.workloads import OnePass, Ready, to_json

REFERENCE = Path(__file__).parent / "results" / "check.json"
MOST_LOST = 0.15
LEAST_ROUNDS = 2
MOST_BUSY = 0.25  # cores that others take before a measurement
LOOK_S = 0.5
RUN = {"warm_s": 0.5, "seconds": 1.0}
PHOTOS = (64, 224, 224, 3)
Spec = dict[str, Any]


class Case(NamedTuple):
    """What is measured of fastfeed, and its yardstick; both are rates."""

    name: str
    own: Spec
    yardstick: Spec
    needs: str = ""  # a peer whose library the yardstick needs


def _rate(peer: str, work: Any) -> Spec:
    return {**RUN, "measure": "rate", "peer": peer, "work": to_json(work), "workers": 1}


def _copies(shape: tuple[int, ...]) -> Spec:
    return {**RUN, "measure": "memcpy", "pairs": 1, "work": to_json(Ready(shape))}


def _shuffled(peer: str, shape: tuple[int, ...]) -> Spec:
    return {**RUN, "measure": "shuffled", "peer": peer, "shape": shape, "capacity": 2000}


def _sink(way: str, shape: tuple[int, ...]) -> Spec:
    return {**RUN, "measure": "sinks", "way": way, "work": to_json(Ready(shape)), "filled": False}


SMALL = Ready((256,), "float32")
CASES = (
    Case(
        "1 KB from a process, by a ring alone", _rate("fastfeed", SMALL), _rate("bare ring", SMALL)
    ),
    Case("1 KB from a process, by a queue", _rate("fastfeed", SMALL), _rate("mp.Queue", SMALL)),
    Case("9.6 MB from a process, by a memcpy", _rate("fastfeed", Ready(PHOTOS)), _copies(PHOTOS)),
    Case(
        "9.6 MB made in place, by a ring alone",
        _rate("fastfeed", OnePass(PHOTOS)),
        _rate("bare ring", OnePass(PHOTOS)),
    ),
    Case(
        "shuffle of 28x28, by a queue of TensorFlow",
        _shuffled("fastfeed", (28, 28)),
        _shuffled("RandomShuffleQueue", (28, 28)),
        "tf.data",
    ),
    Case(
        "100 KB into tf.data, by from_generator",
        _sink("runner.dataset()", (100, 1000)),
        _sink("from_generator", (100, 1000)),
        "tf.data",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.check", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="time for all rounds")
    parser.add_argument("--record", action="store_true", help="write the reference")
    given = parser.parse_args()
    found = measured(given.seconds)
    if not all(found.values()):
        print("not judged: other programs take the cores of this machine", file=sys.stderr)
        return
    if given.record:
        REFERENCE.write_text(json.dumps(found, indent=1) + "\n")
        return
    lost = compared(found, json.loads(REFERENCE.read_text()))
    if lost:
        sys.exit(f"more than {MOST_LOST:.0%} slower than the reference: {', '.join(lost)}")


def measured(seconds: float) -> dict[str, list[float]]:
    """Return the ratios of every case, a number for each round that counts."""
    cases = [case for case in CASES if not case.needs or PEERS[case.needs].installed]
    found: dict[str, list[float]] = {case.name: [] for case in cases}
    end = time.monotonic() + seconds
    for turn in itertools.count():
        if turn >= LEAST_ROUNDS and time.monotonic() > end:
            return found
        for case in tqdm(cases, desc=f"round {turn + 1}", unit="case", file=sys.stderr):
            pair, busy = [case.own, case.yardstick], others()
            try:
                rates = [run(spec, timeout_s=60.0)["value"] for spec in pair[:: 1 - 2 * (turn % 2)]]
            except RunFailed as error:
                sys.exit(f"{case.name}: {error}")
            own, yardstick = rates[:: 1 - 2 * (turn % 2)]
            found[case.name] += [own / yardstick] if max(busy, others()) <= MOST_BUSY else []
    raise AssertionError


def others() -> float:
    """Return how many cores other programs take, while nothing is measured."""
    return float(psutil.cpu_percent(LOOK_S)) / 100 * (psutil.cpu_count() or 1)


def compared(found: dict[str, list[float]], reference: dict[str, list[float]]) -> list[str]:
    """Print a table, and return the names of the cases that have lost."""
    lost = []
    print("| case | reference | this run | |\n|---|---|---|---|")
    for name, ratios in found.items():
        known = reference.get(name)
        said = "not in the reference"
        if known:
            slower = max(ratios) < (1 - MOST_LOST) * min(known)
            said = "**slower**" if slower else ""
            lost += [name] * slower
        print(f"| {name} | {_spread(known)} | {_spread(ratios)} | {said} |")
    return lost


def _spread(ratios: list[float] | None) -> str:
    if not ratios:
        return ""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


if __name__ == "__main__":
    main()
