"""Records a second through a record-level shuffle, on one core.

    python -m bench.shuffle [--quick] [--output build/shuffle]

Batches of 64 go in and batches of 64 come out, of a pool that holds `capacity` records and keeps
half of them back. The input lies ready in memory. "RandomShuffleQueue": a TF1 session that calls
enqueue_many (with arrays at addresses that TensorFlow takes without a copy) and dequeue_many in
turn. "tf.data": unbatch().shuffle(capacity).batch(64) over one tensor that repeats, which spares it
the way in from Python. Beside large ones: a memcpy of the images of a batch.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from bench.command import measure, options, parsed
from bench.peers import PEERS
from bench.results import Row
from bench.rounds import Cell
from bench.workloads import Ready, to_json

ROWS = 64
MEMCPY = "one memcpy"
CASES: list[tuple[str, tuple[int, ...], int]] = [
    ("28x28 uint8 and a label, capacity 2000", (28, 28), 2000),
    ("28x28 uint8 and a label, capacity 20000", (28, 28), 20000),
    ("224x224x3 uint8 and a label, capacity 2000", (224, 224, 3), 2000),
]


def cells_for(given: argparse.Namespace) -> list[Cell]:
    cells = []
    for table, shape, capacity in CASES:
        run = {"warm_s": given.warm_s, "seconds": given.seconds}
        for name in [name for name in KINDS if name == "fastfeed" or PEERS["tf.data"].installed]:
            spec = {
                **run,
                "measure": "shuffled",
                "peer": name,
                "shape": shape,
                "capacity": capacity,
            }
            cells.append(Cell(Row(table, name, 0, "records/s"), spec, timeout_s=120.0))
        work = Ready((ROWS, *shape))
        if work.nbytes > 1 << 20:  # of small records the copy is the least part
            spec = {**run, "measure": "memcpy", "pairs": 1, "work": to_json(work)}
            cells.append(Cell(Row(table, MEMCPY, 0, "records/s"), spec, ROWS))
    return cells


def finish(rows: list[Row]) -> list[Row]:
    """Add the time of a batch to each rate."""
    return [
        replace(row, also=f"{1e6 * ROWS / row.median:.1f} µs a batch" if row.values else "")
        for row in rows
    ]


def shuffled(cell: dict[str, Any]) -> dict[str, float]:
    """Records per second of one peer, each batch touched, once the pool has been filled."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    batches = [arrays(number, tuple(cell["shape"])) for number in range(5)]
    stream = KINDS[cell["peer"]](batches, cell["capacity"])
    seen: set[int] = set()
    for _ in range(2 * cell["capacity"] // ROWS):
        seen.update(next(stream))
    end, count = time.perf_counter() + cell["warm_s"], 0
    while time.perf_counter() < end:
        next(stream)
    start = time.perf_counter()
    while (now := time.perf_counter()) - start < cell["seconds"] or not count:
        next(stream)
        count += 1
    if not seen <= set(range(ROWS)):
        raise RuntimeError("labels that were never put in")
    return {"value": ROWS * count / (now - start), "batches": count, "wall_s": now - start}


def arrays(number: int, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Images and labels, at addresses that every peer can take without a copy."""
    from fastfeed.core.collate import aligned_arrays

    images, labels = aligned_arrays(
        [((ROWS, *shape), np.dtype(np.uint8)), ((ROWS,), np.dtype(np.int64))]
    )
    images[:], labels[:] = number, np.arange(ROWS)
    return [images, labels]


def _pool(batches: list[list[np.ndarray]], capacity: int) -> Iterator[list[int]]:
    from fastfeed import Shuffle
    from fastfeed.core.batch import Batch
    from fastfeed.engine.shuffle_pool import ShufflePool

    pool = ShufflePool(Shuffle(capacity, capacity // 2), batch_size=ROWS, seed=1)
    ready = itertools.cycle([Batch(tuple(b), ROWS, sum(a.nbytes for a in b)) for b in batches])
    while True:
        while pool.wants():
            pool.push(next(ready))
        drawn = pool.draw()
        yield [int(drawn.leaves[0].item(-1)) % ROWS, int(drawn.leaves[1].item(-1))]


def _queue(batches: list[list[np.ndarray]], capacity: int) -> Iterator[list[int]]:
    import tensorflow as tf

    with tf.Graph().as_default():
        queue = tf.queue.RandomShuffleQueue(
            capacity, capacity // 2, [tf.uint8, tf.int64], [batches[0][0].shape[1:], ()], seed=1
        )
        given = [tf.compat.v1.placeholder(a.dtype, a.shape) for a in batches[0]]
        put, get = queue.enqueue_many(given), queue.dequeue_many(ROWS)
        threads = {"intra_op_parallelism_threads": 1, "inter_op_parallelism_threads": 1}
        session = tf.compat.v1.Session(config=tf.compat.v1.ConfigProto(**threads))
    put, get = session.make_callable(put, feed_list=given), session.make_callable(get)
    ready = itertools.cycle(batches)
    for _ in range(capacity // ROWS - 1):
        put(*next(ready))
    while True:
        put(*next(ready))
        images, labels = get()
        yield [int(images.item(-1)) % ROWS, int(labels.item(-1))]


def _dataset(batches: list[list[np.ndarray]], capacity: int) -> Iterator[list[int]]:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    data = tf.data.Dataset.from_tensors(tuple(batches[0])).repeat()
    data = data.unbatch().shuffle(capacity, seed=1).batch(ROWS, drop_remainder=True)
    settings = tf.data.Options()
    settings.threading.private_threadpool_size = 1
    for images, labels in data.with_options(settings).as_numpy_iterator():
        yield [int(images.item(-1)) % ROWS, int(labels.item(-1))]


KINDS: dict[str, Callable[[list[list[np.ndarray]], int], Iterator[list[int]]]] = {
    "fastfeed": _pool,
    "RandomShuffleQueue": _queue,
    "tf.data": _dataset,
}


def main() -> None:
    given = parsed(options("shuffle", __doc__.splitlines()[0]))
    measure("shuffle", cells_for(given), given, finish=finish)


if __name__ == "__main__":
    main()
