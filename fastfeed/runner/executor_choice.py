"""The choice of the executor of augmentation: checks of its options, and the measurement of
"auto"."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fastfeed.engine.epoch_schedule import ResumePoint
from fastfeed.engine.feed import Feed
from fastfeed.errors import FeedError, OptionError
from fastfeed.options import FeedOptions
from fastfeed.source import IndexedSource, source_from

LOG = logging.getLogger("fastfeed")
BUDGET_S = 2.0  # for all candidates together
WARMUP_BATCHES = 2  # the first ones create pools and pipelines
MIN_SPEEDUP = 1.05  # the least that is worth another package


@dataclass(frozen=True)
class ExecutorChoice:
    """The executor `on`, the reason for it, and images/s of each candidate that was measured."""

    on: str
    why: str
    rates: dict[str, float]


def refuse_misfits(options: FeedOptions) -> None:
    """Raise OptionError for options that cannot be combined with DALI, and MissingExtra without
    it."""
    if options.augment is None or options.augment.on not in ("dali-cpu", "dali-gpu"):
        return
    for name, given, instead in (
        (
            "Pad(lengths=True)",
            options.lengths,
            "make images of one size, or augment in the producers",
        ),
        (
            "dtypes=",
            options.dtypes is not None,
            "use Cast(...) for images, and cast the rest in transform=",
        ),
    ):
        if given:
            raise OptionError(
                f"{name} cannot be combined with Augment(on={options.augment.on!r}): {instead}"
            )
    importlib.import_module("fastfeed.augment.dali")  # raises MissingExtra without DALI


def choose(source: Any, options: FeedOptions, *, seed: int) -> ExecutorChoice:
    """Return the fastest executor for a few batches of `source`: "producers" or DALI, measured
    within BUDGET_S beside the time of their first batches. For a source that can be read only once,
    return "producers"."""
    choice = _measured_choice(source, options, seed=seed)
    LOG.info('Augment(on="auto") chose %s: %s', choice.on, choice.why)
    return choice


def _measured_choice(source: Any, options: FeedOptions, *, seed: int) -> ExecutorChoice:
    assert options.augment is not None
    opened = source_from(source, options)
    if not isinstance(opened, IndexedSource):
        return ExecutorChoice(
            "producers", "the source can be read only once, so nothing was measured", {}
        )
    rates: dict[str, float] = {}
    rejected = []
    candidates = _installed_executors()
    for on in candidates:
        try:
            augment = replace(options.augment, on=on)
            tried = replace(
                options, augment=augment, metrics=None, epochs=1, shuffle=None, sampler=None
            )
            refuse_misfits(tried)
            rates[on] = _executor_rate(
                source, tried, seed=seed, budget_s=BUDGET_S / len(candidates)
            )
        except FeedError as error:  # of this executor only, or all of them raise it
            rejected.append(f"{on} is out: {str(error).splitlines()[0]}")
    if not rates:
        return ExecutorChoice("producers", "; ".join(rejected), rates)
    best = max(rates, key=lambda on: rates[on])
    if best != "producers" and rates[best] < MIN_SPEEDUP * rates.get("producers", 0.0):
        best = "producers"
    figures = ", ".join(f"{on} {rate:.0f} images/s" for on, rate in rates.items())
    return ExecutorChoice(best, "; ".join([figures, *rejected]), rates)


def _installed_executors() -> list[str]:
    """Return "producers", and DALI where it is installed; "dali-gpu" only with a GPU."""
    found = ["producers"]
    if (
        importlib.util.find_spec("nvidia") is not None
        and importlib.util.find_spec("nvidia.dali") is not None
    ):
        found.append("dali-cpu")
        from fastfeed.augment.dali import gpu_count

        found += ["dali-gpu"] if gpu_count() else []
    return found


def _executor_rate(source: Any, options: FeedOptions, *, seed: int, budget_s: float) -> float:
    """Return images/s of a feed whose consumer does nothing else."""
    feed = Feed(source, options, seed=seed, resume=ResumePoint(per_run=1))
    try:
        feed.start()
        return _measured_rate(feed.take, budget_s)
    finally:
        feed.stop()


def _measured_rate(take: Callable[[], Any], budget_s: float) -> float:
    start_s = time.perf_counter()
    arrivals: list[tuple[float, int]] = []  # time and records of each batch
    while not arrivals or arrivals[-1][0] - start_s < budget_s:
        batch = take()
        if batch is None:
            break
        arrivals.append((time.perf_counter(), batch.rows))
    warm = WARMUP_BATCHES if len(arrivals) > WARMUP_BATCHES else 0
    start = arrivals[warm - 1][0] if warm else start_s
    records = sum(rows for _, rows in arrivals[warm:])
    elapsed_s = arrivals[-1][0] - start if arrivals else 0.0
    return records / elapsed_s if elapsed_s > 0 else 0.0
