"""Rate by number of workers, for work that waits, runs bytecode or decodes photographs.

    python -m bench.scaling [--quick] [--photos DIR] [--output build/scaling]

The last table is a Keras training step: its time beside producers that hold the interpreter lock,
over its time alone.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.command import chosen, measure, options, parsed
from bench.keras_step import CACHED, CACHED_WAITING
from bench.made_photos import make_photos
from bench.peers import PEERS
from bench.results import Row
from bench.rounds import ROOT, Cell
from bench.workloads import Photos, Python, Sleep, Work, rounds_for, to_json

LIBRARIES = [
    "tf.data",
    "torch",
    "grain",
    "spdl",
    "tensorpack",
    "keras",
    "dali",
    "ray",
    "mp.Queue",
    "bare ring",
]
OURS = ["fastfeed", "fastfeed, yield", "fastfeed, threads", "thread pool"]
BARE = "bare loop"
SMALL = (32, 28, 28, 1)
PHOTO_BATCH = (64, 224, 224, 3)
STEP = "Keras step"


def works(photos: Path) -> dict[str, tuple[Work, list[str]]]:
    """The tables: their work, and who takes part."""
    everyone = [*OURS, *LIBRARIES]
    return {
        "sleep 10 ms": (Sleep(SMALL), everyone),
        "Python 10 ms": (Python(SMALL, rounds=rounds_for(0.01)), [*everyone, BARE]),
        "photographs": (
            Photos(PHOTO_BATCH, folder=str(photos)),
            [*everyone, "tf.data, native", BARE],
        ),
    }


def cells_for(given: argparse.Namespace, photos: Path) -> list[Cell]:
    cells = []
    run = {"warm_s": given.warm_s, "seconds": given.seconds}
    for title, (work, names) in works(photos).items():
        scale, unit = (work.shape[0], "images/s") if isinstance(work, Photos) else (1, "batches/s")
        for workers in (1, 2):
            for name in chosen(names, given):
                if name == BARE and workers > 1:
                    continue
                row = Row(title, name, workers if name != BARE else 0, unit)
                spec = {
                    "measure": "rate",
                    "work": to_json(work),
                    "peer": name,
                    "workers": workers,
                    **run,
                }
                cells.append(Cell(row, spec, scale))
    return cells + steps(run, given)


def steps(run: dict[str, float], given: argparse.Namespace) -> list[Cell]:
    """A step alone, and beside the same work in threads and in processes."""
    if not PEERS["keras"].installed or not PEERS["tf.data"].installed:
        return []
    burning, sleeping = to_json(Python(SMALL, rounds=rounds_for(0.01))), to_json(Sleep(SMALL))
    beside = [
        "fastfeed, threads",
        "fastfeed",
        *(n for n in ("torch", "spdl", "tensorpack") if n in given.peers),
    ]
    cases = [(CACHED, CACHED, 0, burning), (CACHED_WAITING, CACHED_WAITING, 0, burning)]
    cases += [("threads that sleep", "fastfeed, threads", n, sleeping) for n in (1, 2)]
    cases += [(name, name, n, burning) for name in chosen(beside, given) for n in (1, 2)]
    return [
        Cell(
            Row(STEP, shown, n, "ms"),
            {"measure": "step", "work": work, "peer": peer, "workers": n, **run},
        )
        for shown, peer, n, work in cases
    ]


def finish(rows: list[Row]) -> list[Row]:
    """Add the share of workers x the bare loop's rate to a rate, and the ratio to the time alone to
    a step's time."""
    bare = {row.table: row.median for row in rows if row.peer == BARE and row.values}
    alone = next(
        (row.median for row in rows if row.table == STEP and row.peer == CACHED_WAITING), None
    )
    return [replace(row, also=_also(row, bare.get(row.table), alone)) for row in rows]


def _also(row: Row, bare: float | None, alone: float | None) -> str:
    if not row.values:
        return ""
    if row.table == STEP:
        return f"{row.median / alone:.2f} times the step alone" if alone else ""
    if bare is None or not row.workers:
        return ""
    return (
        f"{statistics.median(row.values) / (row.workers * bare):.0%} of {row.workers} x bare loop"
    )


@contextmanager
def photos_in(folder: str | None) -> Iterator[Path]:
    """The photographs that were named or that lie in $FASTFEED_DATA; else smooth random pictures of
    their size."""
    data = Path(os.environ.get("FASTFEED_DATA", ROOT.parent / "shared" / "data"))
    found = Path(folder) if folder else data / "photos"
    if any(found.glob("*.jpg")):
        yield found.resolve()
        return
    print(f"no .jpg in {found}: decoding made-up pictures instead", file=sys.stderr)
    with TemporaryDirectory() as made:
        make_photos(Path(made))
        yield Path(made)


def main() -> None:
    parser = options("scaling", __doc__.splitlines()[0])
    parser.add_argument(
        "--photos", help="a folder of .jpg files (default: photos in $FASTFEED_DATA or shared/data)"
    )
    given = parsed(parser)
    with photos_in(given.photos) as photos:
        measure("scaling", cells_for(given, photos), given, finish=finish)


if __name__ == "__main__":
    main()
