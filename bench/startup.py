"""Cost of a feed before its first batch, in memory, and after its trainer was killed.

python -m bench.startup [--quick] [--tensorflow] [--output build/startup]
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from dataclasses import replace
from typing import Any

from tqdm import tqdm

from bench.command import chosen, measure, options, parsed
from bench.peers import PEERS as ALL
from bench.results import Row
from bench.rounds import Cell, RunFailed, end_all, own_shared_memory, started, tree_of
from bench.workloads import OnePass, Ready, Work, to_json

PEERS = ["fastfeed", "torch", "grain", "spdl", "tensorpack", "keras", "dali", "ray", "mp.Queue"]
COUNTS = (1, 2, 4, 8)
HELD_MB = 400
PHOTOS = OnePass((64, 224, 224, 3))
FIRST, MEMORY = "seconds to the first batch", "memory of the workers and queues"
KILLED = "left after the trainer was killed"


def cells_for(given: argparse.Namespace) -> list[Cell]:
    """1 KB batches for what a worker costs by itself, 9.6 MB ones for the queues, a held array for
    its copies."""
    small, counts = Ready((256,), "float32"), (1, 2) if given.quick else COUNTS
    cases: list[tuple[str, Work, tuple[int, ...]]] = [
        (", 1 KB batches", small, counts),
        (", 9.6 MB batches", PHOTOS, (2,)),
        (
            f", {HELD_MB} MB held by the source",
            replace(small, hold_mb=HELD_MB),
            (1, 2) if given.quick else (1, 4),
        ),
    ]
    run = {"measure": "start", "tensorflow": given.tensorflow, "seconds": min(given.seconds, 1.0)}
    return [
        Cell(
            Row(FIRST + title, name, n, "s"),
            {**run, "work": to_json(work), "peer": name, "workers": n},
        )
        for title, work, numbers in cases
        for n in numbers
        for name in chosen(PEERS, given)
    ]


def finish(rows: list[Row]) -> list[Row]:
    """The same runs also measured memory: a table of its own for each of time."""
    memory = [
        replace(
            row,
            table=row.table.replace(FIRST, MEMORY),
            unit="MB",
            values=[m["pss_mb"] for m in row.more],
            also=f"processes: {row.more[0]['processes']}" if row.more else "",
        )
        for row in rows
    ]
    return [replace(row, also=_import(row)) for row in rows] + memory


def _import(row: Row) -> str:
    return f"after {row.more[0]['import_s']:.2f} s of import" if row.more else ""


def kill_rows(given: argparse.Namespace) -> list[Row]:
    """Kills a trainer that takes batches, once for each peer, and looks 2 and 12 s later what is
    left of its tree."""
    rows = []
    names = chosen(PEERS, given)
    for name in tqdm(names, desc=KILLED, file=sys.stderr):
        row = Row(KILLED, name, 2, "processes")
        try:
            left = killed(name, waits=(2, 4) if given.quick else (2, 12))
        except RunFailed as error:
            row.failed.append(str(error))
        else:
            row.values.append(left[-1]["processes"])
            row.more += left
            row.also = "; ".join(
                f"{a['processes']} and {a['shm_mb']:.1f} MB after {a['after_s']} s" for a in left
            )
        rows.append(row)
    return rows


def killed(name: str, *, waits: tuple[int, ...]) -> list[dict[str, Any]]:
    """Processes of the tree and megabytes new in /dev/shm, so many seconds after the trainer's
    SIGKILL.

    A run has a /dev/shm of its own where the system allows that; else what others make there
    meanwhile counts too.
    """
    before = set() if own_shared_memory() else set(os.listdir("/dev/shm"))
    spec = {"measure": "forever", "work": to_json(PHOTOS), "peer": name, "workers": 2}
    with started(spec) as measurement:
        limit = threading.Timer(60, end_all, (measurement.owner,))
        limit.start()
        while measurement.result() is None and measurement.process.poll() is None:
            time.sleep(0.05)
        limit.cancel()
        if measurement.process.poll() is not None:
            raise RunFailed(f"ended by itself: {measurement.last_words()}")
        # An open folder outlives the last process that had it mounted.
        shared = os.open(f"/proc/{measurement.process.pid}/root/dev/shm", os.O_DIRECTORY)
        measurement.process.kill()
        measurement.process.wait()
        at, left = time.monotonic(), []
        for wait in waits:
            time.sleep(max(0.0, at + wait - time.monotonic()))
            left.append(
                {
                    "after_s": wait,
                    "processes": len(tree_of(measurement.owner)),
                    **_new_in(shared, before),
                }
            )
        os.close(shared)
        return left


def _new_in(folder: int, before: set[str]) -> dict[str, float]:
    """Return the new files of an open folder, and their bytes."""
    new = set(os.listdir(folder)) - before
    return {
        "shm_files": len(new),
        "shm_mb": sum(os.stat(name, dir_fd=folder).st_blocks for name in new) * 512 / 1e6,
    }


def main() -> None:
    parser = options("startup", __doc__.splitlines()[0])
    parser.add_argument(
        "--tensorflow",
        action="store_true",
        help="the trainer has imported and used TensorFlow before",
    )
    given = parsed(parser)
    if given.tensorflow and not ALL["tf.data"].installed:
        parser.error("--tensorflow needs TensorFlow")
    after = [] if given.only and given.only not in KILLED else kill_rows(given)
    measure("startup", cells_for(given), given, finish=lambda rows: finish(rows) + after)


if __name__ == "__main__":
    main()
