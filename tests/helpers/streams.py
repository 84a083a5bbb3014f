"""Streams of records (id, epoch, what the producer drew).

Worker processes import this file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from fastfeed import FeedRunner, Worker
from fastfeed.source.mix import Mix
from tests.helpers.feeds import Readable

LIMIT_S = 60  # no feed of a test stalls for that long, unless it hangs
SEED = 7
MOST_RUNS = 50  # iterations without a batch: the stream has ended
Rows = list[list[int]]


def record(index: int, worker: Worker) -> np.ndarray:
    """Return a record."""
    return np.array([index, worker.epoch, worker.rng.integers(2**62)])


def records(start: int, worker: Worker, *, total: int, size: int) -> np.ndarray:
    """The batch of records that begins with `start`."""
    ids = np.arange(start, min(start + size, total))
    return np.stack(
        [ids, np.full(len(ids), worker.epoch), worker.rng.integers(2**62, size=len(ids))], axis=1
    )


class Chunk:
    """A transform of the first id of a batch."""

    def __init__(self, total: int, size: int) -> None:
        self.total, self.size = total, size

    def __call__(self, start: int, worker: Worker) -> np.ndarray:
        return records(start, worker, total=self.total, size=self.size)


def own(worker: Worker, total: int, size: int, *, first: int = 0) -> Iterator[np.ndarray]:
    """A producer's share in batches, from number `first` on, without draws."""
    for start in range((worker.index + first * worker.count) * size, total, worker.count * size):
        rows = records(start, worker, total=total, size=size)
        rows[:, 2] = 0
        yield rows


def skipping(total: int, size: int) -> Callable[[Worker], Iterator[Any]]:
    """A callable that uses `worker.start`."""
    return lambda worker: own(worker, total, size, first=worker.start)


def sharing(total: int, size: int) -> Callable[[Worker], Iterator[Any]]:
    """A callable that yields its share and ignores `worker.start`."""
    return lambda worker: own(worker, total, size)


def copying(total: int, size: int) -> Callable[[Worker], Iterator[Any]]:
    """A callable that gives each producer a full copy; its records have no epoch."""
    return lambda worker: own(Worker(0, 1, 0, 0), total, size)


def singles(total: int) -> Callable[[Worker], Iterator[Any]]:
    """A callable of single records that uses `worker.start`."""
    return lambda worker: (rows[0] for rows in own(worker, total, 1, first=worker.start))


# Each builds (source, options) that deliver the records 0 to `total`, produced in batches of
# `size`.
KINDS: dict[str, Callable[[int, int], tuple[Any, dict[str, Any]]]] = {
    "indexable": lambda total, size: (range(total), {"transform": record, "batch_size": size}),
    "sequence": lambda total, size: (
        range(0, total, size),
        {"transform": Chunk(total, size), "records": False},
    ),
    "mix": lambda total, size: (
        Mix([(range(total), 2), (range(1000, 1000 + size), 1)], stop="all"),
        {"transform": record, "batch_size": size},
    ),
    "iterable": lambda total, size: (
        Readable(lambda: range(0, total, size)),
        {"transform": Chunk(total, size)},
    ),
    "records": lambda total, size: (
        Readable(lambda: range(total)),
        {"transform": record, "records": True, "batch_size": size},
    ),
    "skipping": lambda total, size: (skipping(total, size), {}),
    "singles": lambda total, size: (singles(total), {"records": True, "batch_size": size}),
    "sharing": lambda total, size: (sharing(total, size), {}),
    "copying": lambda total, size: (copying(total, size), {}),
}
BY_INDEX = ("indexable", "sequence", "mix")
CALLABLES = ("skipping", "singles", "sharing", "copying")


@dataclass(frozen=True)
class Case:
    """A stream, independent of its producers."""

    kind: str
    total: int = 20
    size: int = 3
    options: dict[str, Any] = field(default_factory=dict)

    def runner(self, mix: tuple[int, int], state: Any = None) -> FeedRunner:
        """Return a runner of `mix` (processes, threads) that continues at a saved state."""
        source, needed = KINDS[self.kind](self.total, self.size)
        options = {**needed, "seed": SEED, "stall_timeout_s": LIMIT_S, **self.options}
        runner = FeedRunner(source, processes=mix[0], threads=mix[1], **options)
        return runner if state is None else runner.restore(json.loads(json.dumps(state)))

    @property
    def one_order(self) -> bool:
        """True if the stream does not depend on which producer is faster."""
        return self.kind not in CALLABLES and self.options.get("order", "kept") == "kept"

    def wanted(self, epoch: int) -> Counter[int]:
        """Return how often each id comes in a complete epoch."""
        if self.kind != "mix":
            return Counter(range(self.total))
        source, _ = KINDS["mix"](self.total, self.size)
        order = source.order(SEED, epoch, shuffled=self.options.get("shuffle") is True)
        return Counter(source[i] for i in order.indices(0, len(source)))


def batches(runner: FeedRunner, count: int) -> list[Rows]:
    """Return the next `count` batches, over as many iterations as they need."""
    found: list[Rows] = []
    for _ in range(MOST_RUNS):
        if len(found) == count:
            break
        found += [batch.tolist() for batch in islice(runner, count - len(found))]
    return found


def play(case: Case, mix: tuple[int, int], count: int, state: Any = None) -> tuple[list[Rows], Any]:
    """Return the next `count` batches of a new runner from `state` on, and the state after them."""
    with case.runner(mix, state) as runner:
        return batches(runner, count), runner.state()


def passes(case: Case, mix: tuple[int, int], count: int = 1) -> list[list[Rows]]:
    """Return complete iterations of one runner."""
    with case.runner(mix) as runner:
        return [[batch.tolist() for batch in runner] for _ in range(count)]


def epochs(case: Case, mix: tuple[int, int], count: int) -> list[list[Rows]]:
    """Return the first epochs of `runner.epochs()`."""
    with case.runner(mix) as runner:
        return [[batch.tolist() for batch in epoch] for epoch in islice(runner.epochs(), count)]


def flat(parts: list[Rows]) -> Rows:
    """Return the records of batches."""
    return [row for rows in parts for row in rows]


def ids(parts: list[Rows]) -> list[int]:
    """Return their ids."""
    return [row[0] for row in flat(parts)]


def by_epoch(parts: list[Rows]) -> dict[int, Counter[int]]:
    """Return how often each id came in each epoch; no batch may hold records of two epochs."""
    found: dict[int, Counter[int]] = {}
    for rows in parts:
        assert len({row[1] for row in rows}) == 1, f"a batch over an epoch's end: {rows}"
        found.setdefault(rows[0][1], Counter()).update(row[0] for row in rows)
    return found
