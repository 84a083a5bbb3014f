"""Cost of order and epochs: gaps between epochs, evaluations, order with stragglers, a late resume.

    python -m bench.streams [--quick] [--output build/streams]

The gap is the time between the last batch of an epoch and the first of the next one, over the
median time between two batches: 1 is no gap. Consumer and producers sleep, so that cores do not
matter. An evaluation begins again and again beside a training, with as many workers, and is timed
until its first batch. Stragglers: an item takes a lognormal time around 2 ms, and one in 200 takes
50 times as long. A resume is the time from `restore()`, with a state at batch 10^6, to the first
batch; beside it stands a fresh run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from bench.command import measure, options, parsed
from bench.peers import PEERS
from bench.results import Row
from bench.rounds import Cell

BATCHES, EPOCHS, WORKERS = 40, 6, 4
ITEM_S, STEP_S = 0.02, 0.01
GAP = "gap at an epoch's end, producers that keep up"
STARVED = "gap at an epoch's end, producers that do not"
EVALUATION = "first batch of an evaluation beside a training"
EVALUATIONS, TRAINED = 4, 10  # batches of the training before each
TAIL = "order under stragglers"
RESUME = "resume at batch 10^6"


@dataclass
class Slow:
    """An indexable of batches, each of which takes a while."""

    seconds: float
    length: int = BATCHES

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> np.ndarray:
        time.sleep(self.seconds)
        return np.full(256, index, np.float32)


class Straggling(Slow):
    """A source in which one item in 200 takes 50 times as long as the median item."""

    def __getitem__(self, index: int) -> np.ndarray:
        rng = np.random.default_rng(index)
        time.sleep(self.seconds * (50 if rng.integers(200) == 0 else float(rng.lognormal(0, 0.5))))
        return np.full(256, index, np.float32)


class Endless:
    """A source with as many records as the state needs."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> np.ndarray:
        return np.array([index])


def passes(**given: Any) -> Callable[[Any], Iterator[Iterator[Any]]]:
    """A runner that is iterated over again and again."""

    def epochs(data: Any) -> Iterator[Iterator[Any]]:
        from fastfeed import FeedRunner

        with FeedRunner(data, records=False, shuffle=True, **given) as runner:
            for _ in range(EPOCHS):
                yield iter(runner)

    return epochs


def each(**given: Any) -> Callable[[Any], Iterator[Iterator[Any]]]:
    """`runner.epochs()`."""

    def epochs(data: Any) -> Iterator[Iterator[Any]]:
        from fastfeed import FeedRunner

        with FeedRunner(data, records=False, shuffle=True, epochs=EPOCHS, **given) as runner:
            yield from map(iter, runner.epochs())

    return epochs


def torch(workers: int, **given: Any) -> Callable[[Any], Iterator[Iterator[Any]]]:
    """torch's DataLoader, which takes whole batches here."""

    def epochs(data: Any) -> Iterator[Iterator[Any]]:
        from torch.utils.data import DataLoader

        loader = DataLoader(data, batch_size=None, shuffle=True, num_workers=workers, **given)
        for _ in range(EPOCHS):
            yield iter(loader)

    return epochs


def loops(starved: bool) -> dict[str, Callable[[Any], Iterator[Iterator[Any]]]]:
    count = 1 if starved else 4
    return {
        "fastfeed": each(threads=count),
        "fastfeed, iterated again": passes(threads=count),
        "fastfeed, processes": each(processes=count),
        "torch": torch(count),
        "torch, persistent": torch(count, persistent_workers=True),
    }


def gap(cell: dict[str, Any]) -> dict[str, float]:
    """The worst gap from the second epoch on, over the median time between batches."""
    epochs = loops(cell["starved"])[cell["peer"]](Slow(ITEM_S))
    between: list[float] = []
    gaps: list[float] = []
    last = 0.0
    for number, epoch in enumerate(epochs):
        for position, _ in enumerate(epoch):
            now = time.perf_counter()
            if last:
                (between if position else gaps).append(now - last)
            if not cell["starved"]:
                time.sleep(STEP_S)
            last = now
        if number == EPOCHS - 1:
            break
    median = float(np.median(between))
    return {"value": max(gaps[1:]) / median, "median_s": median, "gaps": [g / median for g in gaps]}


def evaluations() -> dict[str, Callable[[Any, Any], AbstractContextManager[tuple[Any, Any]]]]:
    """What makes a training and its evaluation of two sources, both of which can be iterated."""

    @contextmanager
    def runners(training: Any, held_out: Any, **given: int) -> Iterator[tuple[Any, Any]]:
        from fastfeed import FeedRunner

        with FeedRunner(training, records=False, epochs=None, **given) as runner:
            yield runner, runner.also(held_out, records=False, epochs=1)

    @contextmanager
    def loaders(training: Any, held_out: Any, *, persistent: bool) -> Iterator[tuple[Any, Any]]:
        from torch.utils.data import DataLoader

        options: Any = {"num_workers": WORKERS, "persistent_workers": persistent}
        yield tuple(DataLoader(one, batch_size=None, **options) for one in (training, held_out))

    return {
        "fastfeed": partial(runners, threads=WORKERS),
        "fastfeed, processes": partial(runners, processes=WORKERS),
        "torch": partial(loaders, persistent=False),
        "torch, persistent": partial(loaders, persistent=True),
    }


def evaluation(cell: dict[str, Any]) -> dict[str, float]:
    """Milliseconds to the first batch of an evaluation: the median of those after the first one."""
    took: list[float] = []
    made = evaluations()[cell["peer"]]
    with made(Slow(ITEM_S, length=10**4), Slow(ITEM_S, length=8)) as (training, held_out):
        trained = iter(training)
        for _ in range(EVALUATIONS):
            for _ in range(TRAINED):
                next(trained)
                time.sleep(STEP_S)
            start = time.perf_counter()
            for position, _ in enumerate(held_out):
                if not position:
                    took.append(1e3 * (time.perf_counter() - start))
        del trained
    return {"value": float(np.median(took[1:])), "first_ms": took[0]}


def tail(cell: dict[str, Any]) -> dict[str, float]:
    """Batches per second of a loop that only takes."""
    from fastfeed import FeedRunner

    data = Straggling(0.002, length=10**6)
    with FeedRunner(data, records=False, order=cell["order"], **cell["mix"]) as runner:
        batches = iter(runner)
        for _ in range(400):
            next(batches)
        start, count = time.perf_counter(), 0
        while (now := time.perf_counter()) - start < cell["seconds"]:
            next(batches)
            count += 1
    return {"value": count / (now - start), "batches": count}


def resume(cell: dict[str, Any]) -> dict[str, float]:
    """Milliseconds until the first batch."""
    from fastfeed import FeedRunner
    from fastfeed.runner.checkpoint import checked

    data = Endless(cell["length"])

    def made() -> FeedRunner:
        return FeedRunner(data, batch_size=32, shuffle=True, seed=1, **cell["mix"])

    with made() as runner:
        start = time.perf_counter()
        next(iter(runner))
        fresh = 1e3 * (time.perf_counter() - start)
        state = json.loads(json.dumps(runner.state()))
    state["streams"]["-1"]["next"] = 10**6
    state = checked(state)
    with made() as runner:
        start = time.perf_counter()
        batch = next(iter(runner.restore(state)))
        value = 1e3 * (time.perf_counter() - start)
    return {"value": value, "fresh_ms": fresh, "first": float(batch[0, 0])}


def cells_for(given: argparse.Namespace) -> list[Cell]:
    cells = []
    for table, starved in ((GAP, False), (STARVED, True)):
        for name in loops(starved):
            if "torch" not in name or PEERS["torch"].installed:
                spec = {"measure": "gap", "peer": name, "starved": starved}
                cells.append(Cell(Row(table, name, 1 if starved else 4, "times the median"), spec))
    for name in evaluations():
        if "torch" not in name or PEERS["torch"].installed:
            spec = {"measure": "evaluation", "peer": name}
            cells.append(Cell(Row(EVALUATION, name, WORKERS, "ms"), spec))
    for mix, (name, order) in itertools.product(
        ({"threads": 4}, {"processes": 4}), (("fastfeed", "kept"), ("fastfeed, any order", "any"))
    ):
        kind, count = next(iter(mix.items()))
        spec = {"measure": "tail", "order": order, "mix": mix, "seconds": given.seconds}
        cells.append(Cell(Row(f"{TAIL}, {kind}", name, count, "batches/s"), spec))
    for length, mix in itertools.product((10**8, 10**10), ({"threads": 2}, {"processes": 2})):
        name = "fastfeed" if "threads" in mix else "fastfeed, processes"
        spec = {"measure": "resume", "length": length, "mix": mix}
        cells.append(Cell(Row(f"{RESUME} of {length:.0e} records", name, 2, "ms"), spec))
    return cells


def finish(rows: list[Row]) -> list[Row]:
    """Add the time between batches to each gap, and the time of a fresh start to each resume."""
    return [replace(row, also=_also(row)) for row in rows]


def _also(row: Row) -> str:
    if not row.more:
        return ""
    for key, text, scale in (
        ("median_s", "ms between batches", 1e3),
        ("first_ms", "ms for the first one", 1.0),
        ("fresh_ms", "ms for a run that begins", 1.0),
    ):
        if key in row.more[0]:
            return f"{scale * float(np.median([m[key] for m in row.more])):.1f} {text}"
    return ""


def main() -> None:
    given = parsed(options("streams", __doc__.splitlines()[0]))
    measure("streams", cells_for(given), given, finish=finish)


if __name__ == "__main__":
    main()
