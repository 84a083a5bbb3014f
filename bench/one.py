"""Runs one measurement in its own process, started by bench/rounds.py.

    python -m bench.one '{"measure": "rate", ...}'

It imports little, because spawned workers import it again. The result is the last line on stdout.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from bench import libraries, photo_peers  # noqa: F401  # they register themselves
from bench.peers import PEERS
from bench.results import RESULT_MARK
from bench.workloads import check_order, from_json, read_stamp


def rate(cell: dict[str, Any]) -> dict[str, float]:
    """Batches per second, after warm-up; every batch is touched, and the order of all is checked
    after the clock."""
    work, peer, workers = from_json(cell["work"]), PEERS[cell["peer"]], cell["workers"]
    with peer.open(work, workers) as batches:
        seen: list[int] = []
        _run(batches, seen, seconds=cell["warm_s"], least=8 * workers)
        warm, cpu, start = len(seen), time.process_time(), time.perf_counter()
        _run(batches, seen, seconds=cell["seconds"], least=2)
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    check_order(seen, workers, ordered=peer.ordered or workers == 1, period=work.period)
    count = len(seen) - warm
    return {"value": count / wall, "batches": count, "wall_s": wall, "consumer_cpu_s": cpu}


def _run(batches: Iterator[Any], seen: list[int], *, seconds: float, least: int) -> None:
    end, least = time.perf_counter() + seconds, len(seen) + least
    for batch in batches:
        seen.append(read_stamp(batch))
        if len(seen) >= least and time.perf_counter() >= end:
            return
    raise RuntimeError("the stream ended")


def memcpy(cell: dict[str, Any]) -> dict[str, float]:
    """Copies per second between buffers of a batch's size, all touched before: one pair, or `pairs`
    in turn."""
    size = from_json(cell["work"]).nbytes
    pairs = [(np.ones(size, np.uint8), np.ones(size, np.uint8)) for _ in range(cell["pairs"])]
    end, counts, start = time.perf_counter() + cell["warm_s"], 0, 0.0
    while (now := time.perf_counter()) < end or not counts:
        if not start and now >= end - cell["warm_s"] / 2:
            start, counts, end = now, 0, now + cell["seconds"]
        np.copyto(*pairs[counts % len(pairs)])
        counts += 1
    return {"value": counts / (time.perf_counter() - start)}


def step(cell: dict[str, Any]) -> dict[str, float]:
    """Milliseconds of a Keras training step that takes its batches from a peer, without the wait
    for them."""
    from bench.keras_step import times

    value = float(np.median(times(cell)))
    return {"value": 1e3 * value}


def shuffled(cell: dict[str, Any]) -> dict[str, float]:
    from bench.shuffle import shuffled as measure

    return measure(cell)


def streams(cell: dict[str, Any]) -> dict[str, float]:
    from bench import streams

    return getattr(streams, cell["measure"])(cell)


def data_parallel(cell: dict[str, Any]) -> dict[str, float]:
    from bench import data_parallel

    return getattr(data_parallel, cell["measure"])(cell)


def sinks(cell: dict[str, Any]) -> dict[str, float]:
    from bench.sinks import sinks as measure

    return measure(cell)


def start(cell: dict[str, Any]) -> dict[str, float]:
    from bench.footprint import measure

    return measure(cell)


def forever(cell: dict[str, Any]) -> dict[str, float]:
    """Takes batches until it is killed; says so when the first second has passed."""
    work, peer, workers = from_json(cell["work"]), PEERS[cell["peer"]], cell["workers"]
    with peer.open(work, workers) as batches:
        seen: list[int] = []
        _run(batches, seen, seconds=1.0, least=8 * workers)
        print(f"{RESULT_MARK}{{}}", flush=True)
        while True:
            _run(batches, seen, seconds=1.0, least=1)
            seen.clear()


def fault(cell: dict[str, Any]) -> dict[str, Any]:
    from bench.faults import fault as measure

    return measure(cell)


def one_run(cell: dict[str, Any]) -> dict[str, Any]:
    os.environ["FASTFEED_TRAINING_SEED"] = str(cell["seed"])
    from bench.trainings.training import one_run as measure

    return measure(cell)


MEASURES = {
    f.__name__: f for f in (fault, one_run, rate, memcpy, step, shuffled, sinks, start, forever)
}
MEASURES |= dict.fromkeys(("gap", "evaluation", "tail", "resume"), streams)
MEASURES |= dict.fromkeys(("once", "cost", "slow"), data_parallel)


def main() -> None:
    cell = json.loads(sys.argv[1])
    result = MEASURES[cell["measure"]](cell)
    print(f"\n{RESULT_MARK}{json.dumps(result)}", flush=True)
    os._exit(0)  # what a library does at exit is not measured, and some of them hang there


if __name__ == "__main__":
    main()
