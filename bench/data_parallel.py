"""Shards: every record once an epoch, their cost, and ranks that share out the batches as they go.

    python -m bench.data_parallel [--quick] [--output build/data_parallel]

"8 ranks": as many processes as in the table, three epochs each. The figure is the number of faults:
records that did not come exactly once in an epoch over all ranks, and ranks with other numbers of
steps. "With a shard": batches/s of a trainer whose runner has shard=(0, 8) over one that has all
records, the two in turn in one process. "One rank 4 times slower": three ranks of a ShardServer
whose steps sleep, so that cores do not matter; batches/s of each fast one, over those without the
slow one. A run with a record that is not consumed exactly once fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from typing import Any

import numpy as np

from bench.command import measure, options, parsed
from bench.results import Row
from bench.rounds import Cell
from fastfeed import FeedRunner, Shard
from fastfeed.ranks import ShardServer

WORLD, EPOCHS = 8, 3
RECORDS, BATCH = 12_345, 32  # 1,543 of them for each rank, and one over
STEP_S = 0.02
MIXES = {
    "1 thread": {"threads": 1},
    "2 threads": {"threads": 2},
    "1 process": {"processes": 1},
}
LIMIT_S = 120.0


def ranks(specs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run a process for each spec, all at once, and return what they answer."""
    with ExitStack() as stack:
        running = []
        for spec in specs:
            command = [sys.executable, "-m", "bench.feed_rank", json.dumps(spec)]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            process = stack.enter_context(subprocess.Popen(command, text=True, **pipes))
            stack.callback(process.kill)
            running.append(process)
        for process in running:
            assert process.stdout is not None
            process.stdout.readline()
        for process in running:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        return [json.loads(process.communicate(timeout=LIMIT_S)[0]) for process in running]


def once(cell: dict[str, Any]) -> dict[str, float]:
    """Count the faults of three epochs."""
    shared = {"records": RECORDS, "batch_size": BATCH, "epochs": EPOCHS, "seed": 1, **cell["mix"]}
    rest = [WORLD, cell["remainder"]]
    found = ranks([{**shared, "shard": [rank, *rest]} for rank in range(WORLD)])
    each = -(-RECORDS // WORLD) if cell["remainder"] == "pad" else RECORDS // WORLD
    faults = 0
    for epoch in range(EPOCHS):
        parts = [rank["epochs"][epoch] for rank in found]
        faults += len({tuple(map(len, part)) for part in parts}) - 1
        counts = Counter(n for part in parts for batch in part for n in batch)
        # drop: one record is left out of each epoch; pad: some come a second time
        over = each * WORLD - RECORDS
        faults += abs(RECORDS - len(counts) - max(0, -over))
        faults += abs(sum(counts.values()) - len(counts) - max(0, over))
    return {"value": float(faults), "steps": float(len(found[0]["epochs"][0]))}


def cost(cell: dict[str, Any]) -> dict[str, float]:
    """Return batches/s with a shard over those without, the median of pairs in turn."""
    rng = np.random.default_rng(0)
    images, weights = rng.integers(0, 256, (60_000, 784), np.uint8), rng.normal(size=(784, 256))
    weights = weights.astype(np.float32)

    def rate(**shard: Any) -> float:
        runner = FeedRunner((images,), batch_size=128, shuffle=True, seed=1, epochs=10**6, **shard)
        with runner:
            batches = iter(runner)
            for _ in range(20):
                next(batches)
            start, count = time.perf_counter(), 0
            while (now := time.perf_counter()) - start < cell["seconds"] / 2:
                (batch,) = next(batches)
                np.tanh(batch.astype(np.float32) @ weights).sum()
                count += 1
        return count / (now - start)

    rate()
    pairs = []
    for turn in range(8):
        if turn % 2:
            alone, sharded = rate(), rate(shard=Shard(0, WORLD, "drop"))
        else:
            sharded, alone = rate(shard=Shard(0, WORLD, "drop")), rate()
        pairs.append((sharded, alone))
    ratios = [sharded / alone for sharded, alone in pairs]
    return {"value": float(np.median(ratios)), "alone": float(np.median([a for _, a in pairs]))}


def slow(cell: dict[str, Any]) -> dict[str, float]:
    """Return the rate of the slowest of two fast ranks over its rate without the slow one."""
    records = int(cell["seconds"] / STEP_S) * BATCH

    def rates(*factors: float) -> list[float]:
        with ShardServer() as server:
            shared = {"records": records, "batch_size": BATCH, "epochs": EPOCHS}
            steps = [{"step_s": STEP_S * factor} for factor in factors]
            found = ranks([{**shared, **step, "shard": server.address} for step in steps])
        counts = Counter(
            (number, n)
            for rank in found
            for number, epoch in enumerate(rank["epochs"])
            for batch in epoch
            for n in batch
        )
        each = Counter(n for _, n in counts.elements())
        if set(each.values()) != {EPOCHS} or len(each) != records:
            raise RuntimeError("a record did not come once an epoch")
        return [(len(r["times"]) - 1) / (r["times"][-1] - r["times"][0]) for r in found]

    alone, beside = rates(1, 1), rates(1, 1, 4)
    ratios = [b / a for b, a in zip(beside, alone, strict=False)]
    return {"value": min(ratios), "alone": alone[0], "slow": beside[2]}


def cells_for(given: argparse.Namespace) -> list[Cell]:
    cells = []
    for name, mix in MIXES.items():
        for remainder in ("drop", "pad"):
            row = Row(f"{WORLD} ranks, {EPOCHS} epochs", f"{name}, {remainder}", WORLD, "faults")
            spec = {"measure": "once", "mix": mix, "remainder": remainder}
            cells.append(Cell(row, spec, timeout_s=LIMIT_S))
    row = Row("with a shard", "FeedRunner", 1, "of the rate without")
    cells.append(Cell(row, {"measure": "cost", "seconds": given.seconds}))
    row = Row("one rank 4 times slower", "the other two", 3, "of the rate without it")
    spec = {"measure": "slow", "seconds": given.seconds}
    cells.append(Cell(row, spec, timeout_s=LIMIT_S))
    return cells


def main() -> None:
    given = parsed(options("data_parallel", __doc__.splitlines()[0]))
    measure("data_parallel", cells_for(given), given)


if __name__ == "__main__":
    main()
