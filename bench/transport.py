"""Cost of bringing a batch from a worker process to the training loop.

    python -m bench.transport [--quick] [--output build/transport]

Small batches show the cost of handing over, large ones the cost of the copies. "ready": the data
exist and are copied out; "one pass": one pass over prepared data produces them, in fastfeed and the
bare ring in their final place, in the others in a fresh array, as their interfaces require. Each
figure stands beside a memcpy of that size.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace

from bench.command import chosen, measure, options, parsed
from bench.results import Row
from bench.rounds import Cell
from bench.workloads import OnePass, Ready, Work, to_json

PHOTOS = (64, 224, 224, 3)
PEERS = [
    "fastfeed",
    "fastfeed, yield",
    "torch",
    "grain",
    "spdl",
    "spdl, queue",
    "tensorpack",
    "keras",
    "dali",
    "ray",
]
YARDSTICKS = ["mp.Queue", "bare ring"]
MEMCPY, COLD = "one memcpy", "memcpy, 5 pairs in turn"
CASES: list[tuple[str, Work, int]] = [
    ("1 KB ready", Ready((256,), "float32"), 1),
    *((f"9.6 MB ready, workers: {n}", Ready(PHOTOS), n) for n in (1, 2)),
    *((f"9.6 MB one pass, workers: {n}", OnePass(PHOTOS), n) for n in (1, 2)),
    *((f"38.5 MB one pass, workers: {n}", OnePass((256, *PHOTOS[1:])), n) for n in (1, 2)),
]


def cells_for(given: argparse.Namespace) -> list[Cell]:
    cells = []
    for table, work, workers in CASES:
        small = work.nbytes < 1 << 20
        scale, unit = (1.0, "batches/s") if small else (work.nbytes / 1e9, "GB/s")
        spec = {
            "work": to_json(work),
            "workers": workers,
            "warm_s": given.warm_s,
            "seconds": given.seconds,
        }
        for name in chosen(PEERS + YARDSTICKS, given):
            row = Row(table, name, workers, unit)
            cells.append(Cell(row, {**spec, "measure": "rate", "peer": name}, scale))
        if not small:
            for name, pairs in ((MEMCPY, 1), (COLD, 5)):
                cells.append(
                    Cell(
                        Row(table, name, 0, unit),
                        {**spec, "measure": "memcpy", "pairs": pairs},
                        scale,
                    )
                )
    return cells


def finish(rows: list[Row]) -> list[Row]:
    """Add the time of a small batch, or the share of a memcpy's rate in the same round."""
    copies = {row.table: row.values for row in rows if row.peer == MEMCPY}
    return [replace(row, also=_also(row, copies.get(row.table))) for row in rows]


def _also(row: Row, copies: list[float] | None) -> str:
    if not row.values or row.peer == MEMCPY:
        return ""
    if not copies:
        return f"{1e6 / row.median:.1f} µs a batch"
    if len(copies) != len(row.values):  # a run failed: no pairs
        copies = [statistics.median(copies)] * len(row.values)
    share = statistics.median(value / copy for value, copy in zip(row.values, copies, strict=True))
    return f"{share:.0%} of one memcpy"


def main() -> None:
    given = parsed(options("transport", __doc__.splitlines()[0]))
    measure("transport", cells_for(given), given, finish=finish)


if __name__ == "__main__":
    main()
