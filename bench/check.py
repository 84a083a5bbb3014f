"""Has anything become slower? Ratios of fastfeed to yardsticks of the same run, against the
committed reference.

    python -m bench.check [--seconds 600] [--record | --add]

A yardstick is code that fastfeed does not contain: a memcpy, a hand-made ring, a queue of
TensorFlow. Both run in turn, each in a fresh process, round after round until the time is over. A
round in which other programs take a quarter of a core does not count.

A case has lost if the median of its rounds is more than 15 % below the median of the reference, and
with it at least nine tenths of its rounds. Three rounds are enough to find no loss. A case whose
median is too low, or that has fewer rounds, goes on after the time: a loss takes ten.

- What can pass: a loss that leaves more than a tenth of the rounds above the limit, or by chance
  the median of three. Where all rounds are alike this is a loss of up to 15 %; where they reach
  20 % above their median, of up to 29 %. The last column of the table says for each case from which
  loss on the rounds of the reference would be below the limit.
- False alarms: let q be the share of rounds that are below the limit although nothing is slower.
  Nine of ten are with a chance below 10 q^9: 1 in 2,000 where a third of the rounds is, and 1 in
  200,000 where a fifth is. This takes the rounds to be independent. The ratios of one hour may all
  be lower than those of another, so a reference should have rounds of several: `--add`. One of
  another kind of processor says nothing.

Exit codes: 1 if a case has lost, 2 if less than half of the cases could be judged. `--record`
writes the reference, `--add` adds the rounds of this run to it.
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
LEAST_ROUNDS, SURE_ROUNDS = 3, 10  # that count: to find nothing, and to find a loss
SPARED = 10  # one of so many rounds may be above the limit of a loss
LATE_TURNS = 10  # after the time, for the cases that need more rounds
SLOWER, NOISE, UNJUDGED = "**slower**", "lower, within the noise", "not judged"
MOST_BUSY = 0.25  # cores that others take before a measurement
LOOK_S = 0.5
RUN = {"warm_s": 0.5, "seconds": 1.0}
PHOTOS = (64, 224, 224, 3)
Spec = dict[str, Any]
Ratios = dict[str, list[float]]


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
    written = parser.add_mutually_exclusive_group()
    written.add_argument("--record", action="store_true", help="write the reference")
    written.add_argument("--add", action="store_true", help="add this run to the reference")
    given = parser.parse_args()
    reference = {} if given.record else json.loads(REFERENCE.read_text())
    writes = given.record or given.add
    found = measured(given.seconds, {} if writes else reference)
    sys.exit(recorded(found, reference) if writes else judged(found, reference))


def recorded(found: Ratios, reference: Ratios) -> int:
    """Write the rounds of the reference and those of this run; return the exit code."""
    few = [case.name for case in CASES if len(found.get(case.name, [])) < SURE_ROUNDS]
    if few:
        print(f"NOT RECORDED: too few rounds count of {', '.join(few)}", file=sys.stderr)
        return 2
    every = {name: reference.get(name, []) + ratios for name, ratios in found.items()}
    REFERENCE.write_text(json.dumps(every, indent=1) + "\n")
    return 0


def measured(seconds: float, reference: Ratios) -> Ratios:
    """Return the ratios of every case, a number for each round that counts.

    After the time, a case goes on until it has as many rounds as it needs.
    """
    cases = [case for case in CASES if not case.needs or PEERS[case.needs].installed]
    found: Ratios = {case.name: [] for case in cases}
    end, late = time.monotonic() + seconds, 0
    for turn in itertools.count():
        due = cases
        if turn >= LEAST_ROUNDS and time.monotonic() > end:
            due = [c for c in cases if not enough(found[c.name], reference.get(c.name))]
            late += 1
            if not due or late > LATE_TURNS:
                return found
        for case in tqdm(due, desc=f"round {turn + 1}", unit="case", file=sys.stderr):
            found[case.name] += _round(case, backwards=bool(turn % 2))
    raise AssertionError


def _round(case: Case, *, backwards: bool) -> list[float]:
    """Return the ratio of a round, or nothing beside other programs."""
    if others() > MOST_BUSY:
        return []
    order = slice(None, None, -1 if backwards else 1)
    try:
        rates = [run(spec, timeout_s=60.0)["value"] for spec in [case.own, case.yardstick][order]]
    except RunFailed as error:
        sys.exit(f"{case.name}: {error}")
    own, yardstick = rates[order]
    return [own / yardstick] if others() <= MOST_BUSY else []


def enough(ratios: list[float], known: list[float] | None) -> bool:
    """Return True if a case needs no more rounds; without a reference it needs those of one."""
    good = known and len(ratios) >= LEAST_ROUNDS and statistics.median(ratios) >= limit(known)
    return bool(good) or len(ratios) >= SURE_ROUNDS


def limit(known: list[float]) -> float:
    """Return the ratio below which a loss begins."""
    return (1 - MOST_LOST) * statistics.median(known)


def others() -> float:
    """Return how many cores other programs take, while nothing is measured."""
    return float(psutil.cpu_percent(LOOK_S)) / 100 * (psutil.cpu_count() or 1)


def verdict(ratios: list[float], known: list[float] | None) -> str:
    """Return what the rounds of a case say; nothing if all is well."""
    if not known:
        return f"{UNJUDGED}: not in the reference"
    if not enough(ratios, known):
        return f"{UNJUDGED}: only {len(ratios)} rounds count"
    if statistics.median(ratios) >= limit(known):
        return ""
    above = sum(ratio >= limit(known) for ratio in ratios)
    return SLOWER if above <= len(ratios) // SPARED else NOISE


def judged(found: Ratios, reference: Ratios) -> int:
    """Print a table, and what is slower or not judged; return the exit code."""
    said = {case.name: f"{UNJUDGED}: its yardstick is not installed" for case in CASES}
    said |= {name: verdict(ratios, reference.get(name)) for name, ratios in found.items()}
    print("| case | reference | this run | | a loss shows from |\n|---|---|---|---|---|")
    for name, text in said.items():
        known = reference.get(name)
        told = _spread(known), _spread(found.get(name)), text, f"{_shows(known):.0%}"
        print(f"| {name} | {' | '.join(told)} |")
    lost = [name for name, text in said.items() if text == SLOWER]
    out = [name for name, text in said.items() if text.startswith(UNJUDGED)]
    if out:
        print(f"\nNOT JUDGED: {len(out)} of {len(said)}: {', '.join(out)}", file=sys.stderr)
    if lost:
        print(f"\nmore than {MOST_LOST:.0%} slower: {', '.join(lost)}", file=sys.stderr)
        return 1
    return 2 if 2 * len(out) > len(said) else 0


def _shows(known: list[float] | None) -> float:
    """Return the loss with which all rounds of the reference are below its limit, but those that
    are spared."""
    if not known:
        return 1.0
    return 1 - limit(known) / sorted(known)[-1 - len(known) // SPARED]


def _spread(ratios: list[float] | None) -> str:
    if not ratios:
        return ""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


if __name__ == "__main__":
    main()
