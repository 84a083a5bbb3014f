"""The loops of PyTorch and JAX on the CPU beside the plain one: GB/s from two worker processes
whose data lie ready."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from bench.workloads import Ready
from fastfeed import FeedRunner

PLAIN = "loop"
# of each runner: those whose turn it is not soon have all they may hold, and rest
MEMORY = 200_000_000
# how to iterate; how to read a batch
LOOPS: dict[str, tuple[Callable[[FeedRunner], Any], Callable[[Any], Any]]] = {
    PLAIN: (iter, lambda images: images.item(-1)),
    "runner.torch()": (
        lambda runner: iter(runner.torch()),
        lambda images: images[-1, -1, -1, -1].item(),
    ),
    "runner.jax()": (lambda runner: iter(runner.jax()), lambda images: images.block_until_ready()),
}


def loops(
    shape: tuple[int, ...] = (64, 224, 224, 3),
    *,
    rounds: int = 9,
    warm_s: float = 0.3,
    seconds: float = 1.0,
) -> dict[str, dict[str, float]]:
    """Measure loops in turn in this process; each round starts with another one.

    Return for each loop the median, the least and the most GB/s of its rounds, and the median
    `share` of the plain loop's rate in the same round.
    """
    work = Ready(shape)
    rates: dict[str, list[float]] = {name: [] for name in LOOPS}
    with ExitStack() as stack:
        batches = {name: _opened(stack, work, name=name) for name in LOOPS}
        for turn in range(rounds):
            for name in _turned(list(LOOPS), turn):
                _rate(batches[name], LOOPS[name][1], seconds=warm_s)
                rates[name].append(
                    work.nbytes / 1e9 * _rate(batches[name], LOOPS[name][1], seconds=seconds)
                )
    found = {}
    for name, values in rates.items():
        shares = [value / plain for value, plain in zip(values, rates[PLAIN], strict=True)]
        found[name] = {
            "median": statistics.median(values),
            "least": min(values),
            "most": max(values),
        }
        found[name]["share"] = statistics.median(shares)
    return found


def _opened(stack: ExitStack, work: Ready, *, name: str) -> Iterator[Any]:
    def source(worker: Any) -> Iterator[Any]:
        for (images,) in work.stream(worker.index, worker.count):
            yield images

    runner = stack.enter_context(FeedRunner(source, processes=2, memory=MEMORY))
    return LOOPS[name][0](runner)


def _turned(names: list[str], turn: int) -> list[str]:
    shift = turn % len(names)
    return names[shift:] + names[:shift]


def _rate(batches: Iterator[Any], read: Callable[[Any], Any], *, seconds: float) -> float:
    start = time.perf_counter()
    for count, batch in enumerate(batches, 1):
        read(batch)
        if (now := time.perf_counter()) - start >= seconds:
            return count / (now - start)
    raise RuntimeError("the source has no end")
