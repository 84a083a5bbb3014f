"""Options, execution and output files that the benchmark scripts share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bench import report, results
from bench.peers import PEERS
from bench.results import Row
from bench.rounds import Cell, run_rounds


def options(kind: str, text: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m bench.{kind}", description=text)
    parser.add_argument(
        "--output", type=Path, default=Path("build") / kind, help="folder for the results"
    )
    parser.add_argument(
        "--repeats", type=int, default=None, help="fresh processes for each figure (3; quick: 1)"
    )
    parser.add_argument(
        "--seconds", type=float, default=None, help="measured seconds of each run (3; quick: 0.5)"
    )
    parser.add_argument(
        "--peers", help="only these, with ; between them (default: all that are installed)"
    )
    parser.add_argument("--only", help="only tables whose name contains this")
    parser.add_argument(
        "--quick", action="store_true", help="does everything run? The figures mean nothing"
    )
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    given = parser.parse_args()
    given.repeats = given.repeats or (1 if given.quick else 3)
    given.seconds = given.seconds or (0.5 if given.quick else 3.0)
    given.warm_s = 0.3 if given.quick else 1.5
    given.peers = [p.strip() for p in given.peers.split(";")] if given.peers else list(PEERS)
    unknown = sorted(set(given.peers) - set(PEERS))
    if unknown:
        parser.error(f"unknown peers {unknown}; there are {'; '.join(PEERS)}")
    return given


def chosen(names: Iterable[str], given: argparse.Namespace) -> list[str]:
    """Return the peers of a table that were selected and are installed."""
    return [name for name in names if name in given.peers and PEERS[name].installed]


def measure(
    kind: str,
    cells: list[Cell],
    given: argparse.Namespace,
    *,
    finish: Callable[[list[Row]], list[Row]] = list,
) -> dict[str, Any]:
    """Runs the cells, lets `finish` add what follows from the figures, then shows and writes
    everything."""
    cells = [cell for cell in cells if not given.only or given.only in cell.row.table]
    run_rounds(cells, repeats=given.repeats)
    rows = finish([cell.row for cell in cells])
    plan = {
        "repeats": given.repeats,
        "seconds": given.seconds,
        "warm_s": given.warm_s,
        "quick": given.quick,
    }
    document = results.to_json(kind, rows, plan)
    path = results.write(document, given.output)
    report.show(document)
    picture = report.plot(document, given.output)
    print(f"written: {path}, {picture}", file=sys.stderr)
    return document
