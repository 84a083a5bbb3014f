"""Who augments: what cannot work is refused, and "auto" measures a few batches of the user's own
data."""

from __future__ import annotations

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
AUTO = "auto"
BUDGET_S = 2.0  # for all candidates together
WARM = 2  # batches before the clock starts: pools and pipelines are made with the first ones
MARGIN = 1.05  # what is no more than this much faster is not worth a package more


@dataclass(frozen=True)
class ExecutorChoice:
    """Who augments, and why; images a second of each candidate that was measured."""

    on: str
    why: str
    rates: dict[str, float]


def refuse_misfits(options: FeedOptions) -> None:
    """OptionError for options that do not go together with DALI, and for operations that it cannot
    do."""
    if options.augment is None or options.augment_on not in ("dali-cpu", "dali-gpu"):
        return
    for name, given, instead in (
        ("lengths", options.lengths, "make images of one size, or augment in the producers"),
        (
            "dtypes",
            options.dtypes is not None,
            "say Cast(...) for images, and cast the rest in transform=",
        ),
    ):
        if given:
            raise OptionError(
                f"{name}= together with augment_on={options.augment_on!r} cannot be done: {instead}"
            )
    from fastfeed.augment.dali import handed_over
    from fastfeed.augment.dali_steps import check

    check(handed_over(options.augment))


def choose(source: Any, options: FeedOptions, *, seed: int) -> ExecutorChoice:
    """The quickest of "producers" and DALI for some batches of `source`, within BUDGET_S and the
    time of its first batches. A source that is read once cannot be tried out: its producers
    augment."""
    choice = _measured(source, options, seed=seed)
    LOG.info('augment_on="auto" chose %s: %s', choice.on, choice.why)
    return choice


def _measured(source: Any, options: FeedOptions, *, seed: int) -> ExecutorChoice:
    kind = source_from(source, options)
    if not isinstance(kind, IndexedSource):
        return ExecutorChoice(
            "producers", "the source cannot be read twice at no cost, so nothing was measured", {}
        )
    rates: dict[str, float] = {}
    left_out = []
    candidates = _candidates()
    for on in candidates:
        try:
            tried = replace(
                options, augment_on=on, metrics=None, epochs=1, shuffle=None, sampler=None
            )
            refuse_misfits(tried)
            rates[on] = _rate(source, tried, seed=seed, budget_s=BUDGET_S / len(candidates))
        except (
            FeedError
        ) as error:  # what it needs is not there, or it cannot do it: the others can, or will tell
            left_out.append(f"{on} is out: {str(error).splitlines()[0]}")
    if not rates:
        return ExecutorChoice("producers", "; ".join(left_out), rates)
    best = max(rates, key=lambda on: rates[on])
    if best != "producers" and rates[best] < MARGIN * rates.get("producers", 0.0):
        best = "producers"
    figures = ", ".join(f"{on} {rate:.0f} images/s" for on, rate in rates.items())
    return ExecutorChoice(best, "; ".join([figures, *left_out]), rates)


def _candidates() -> list[str]:
    """OpenCV, and DALI where it is installed; on a GPU only where the driver has one."""
    found = ["producers"]
    if (
        importlib.util.find_spec("nvidia") is not None
        and importlib.util.find_spec("nvidia.dali") is not None
    ):
        found.append("dali-cpu")
        from fastfeed.augment.dali import gpus

        found += ["dali-gpu"] if gpus() else []
    return found


def _rate(source: Any, options: FeedOptions, *, seed: int, budget_s: float) -> float:
    """Images a second of a feed that is taken from as fast as can be."""
    feed = Feed(source, options, seed=seed, resume=ResumePoint(per_run=1))
    try:
        feed.start()
        return _paced(feed.take, budget_s)
    finally:
        feed.stop()


def _paced(take: Callable[[], Any], budget_s: float) -> float:
    begun = time.perf_counter()
    came: list[tuple[float, int]] = []  # when, and how many records
    while not came or came[-1][0] - begun < budget_s:
        batch = take()
        if batch is None:
            break
        came.append((time.perf_counter(), batch.rows))
    warm = WARM if len(came) > WARM else 0
    start = came[warm - 1][0] if warm else begun
    records, elapsed_s = sum(rows for _, rows in came[warm:]), came[-1][0] - start if came else 0.0
    return records / elapsed_s if elapsed_s > 0 else 0.0
