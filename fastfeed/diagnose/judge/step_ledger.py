"""The ledger of a watch: every second of the loop's thread, in exactly one account."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from fastfeed.diagnose.diagnosis import Account, Figures

Floats = np.ndarray[Any, np.dtype[np.float64]]
BLOCKS = 10  # parts of the time whose differences give the ranges


@dataclass(frozen=True)
class Ledger:
    """The observed steps in columns, one entry for each step, in seconds.

    `period` is the time from `begin` to the next step's. Its parts are the `wait` for input, the
    wait at the `start` of an epoch, `converted` (what the loop's thread does to a batch before its
    step can run), the time `inside` the step, the `host`'s work beside it, and the `pause`: work
    that is neither. `pauses`: start, length and name ("" if unknown).
    """

    begin: Floats
    period: Floats
    wait: Floats
    start: Floats
    converted: Floats
    inside: Floats
    host: Floats
    pause: Floats
    pauses: tuple[tuple[float, float, str], ...] = ()

    def __len__(self) -> int:
        return len(self.period)

    @property
    def seconds(self) -> float:
        """The whole time."""
        return float(self.period.sum())

    def share(self, part: Floats) -> float:
        """Return the share of the time that a column takes."""
        return float(part.sum()) / self.seconds if self.seconds else 0.0

    @property
    def waited(self) -> float:
        """Share of the time in which steps wait for a batch; conversions do not count."""
        return self.share(self.wait + self.start)

    @property
    def starved(self) -> Floats:
        """Seconds of each step in which it could have run but had no input in its final form."""
        found: Floats = self.wait + self.start + self.converted
        return found

    @property
    def starvation(self) -> float:
        """Share of the time in which a step could have run but had no input."""
        return min(1.0, self.share(self.starved))

    def part(self, first: int, end: int) -> Ledger:
        """Return the steps from `first` to before `end`."""
        columns = {
            one.name: getattr(self, one.name)[first:end]
            for one in fields(self)
            if one.name != "pauses"
        }
        until = float("inf") if end >= len(self) else self.begin[end]
        inside = [one for one in self.pauses if len(self) and self.begin[first] <= one[0] < until]
        return Ledger(**columns, pauses=tuple(inside))

    def blocks(self, count: int = BLOCKS) -> Iterator[Ledger]:
        """Yield the ledger in parts with equal numbers of steps."""
        edges = np.linspace(0, len(self), min(count, len(self)) + 1).astype(int)
        return (self.part(a, b) for a, b in itertools.pairwise(edges))


def accounts_of(
    ledger: Ledger, *, python: float, foreign: float, watched_s: float, observing_s: float
) -> tuple[Account, ...]:
    """Return the accounts of the loop's thread; their shares of the watched time add up to 1.

    `python`: the share of bytecode in the work of the steps; `foreign`: the share of the time in
    which other processes keep the thread from the cores; `observing_s`: taken by fastfeed itself,
    with its experiments. What is left of `watched_s` is "unseen".
    """
    foreign_s = np.minimum(ledger.inside, foreign * ledger.period)
    columns = {
        "input": ledger.starved,
        "step on the host": (ledger.inside - foreign_s) * python,
        "step elsewhere": (ledger.inside - foreign_s) * (1 - python),
        "the loop beside the step": ledger.host,
        "pauses and other work": ledger.pause,
        "other processes": foreign_s,
    }
    scale = 1 / max(1e-9, watched_s)
    found = [Account(name, *_with_error(one, scale)) for name, one in columns.items()]
    found.append(Account("fastfeed", observing_s * scale, 0.0))
    seen = sum(one.share for one in found)
    return (*found, Account("unseen", max(0.0, 1.0 - seen), 0.0))


def _with_error(column: Floats, scale: float) -> tuple[float, float]:
    """Return the share of a column, and two standard errors of it."""
    total = float(column.sum())
    error = 2 * float(column.std()) * len(column) ** 0.5 if len(column) else 0.0
    return total * scale, min(total, error) * scale


def figures_of(ledger: Ledger) -> Figures | None:
    """Return the figures of the steps; None without any step."""
    if not len(ledger):
        return None
    parts = list(ledger.blocks())
    rate, rates = len(ledger) / ledger.seconds, [len(part) / part.seconds for part in parts]
    slow, fast = float(np.quantile(rates, 0.25)), float(np.quantile(rates, 0.75))
    low, high = _range([part.starvation for part in parts], ledger.starvation)
    kinds = {
        "step": ledger.inside,
        "wait": ledger.starved,
        "host": ledger.host,
        "pause": ledger.pause,
    }
    return Figures(
        steps=len(ledger),
        seconds=ledger.seconds,
        steps_per_second=rate,
        # a few long pauses leave the quartiles above it
        steps_per_second_range=(min(slow, rate), max(fast, rate)),
        step_s=float(np.median(ledger.inside)),
        period_s=float(np.median(ledger.period)),
        wait_p50_s=float(np.median(ledger.starved)),
        wait_p99_s=float(np.quantile(ledger.starved, 0.99)),
        starvation=ledger.starvation,
        starvation_range=(low, high),
        utilisation=min(1.0, ledger.share(ledger.inside)),
        shares={name: ledger.share(part) for name, part in kinds.items()},
    )


def _range(values: Sequence[float], middle: float) -> tuple[float, float]:
    """Return the interval of two standard errors about the middle."""
    error = 2 * float(np.std(values)) / max(1, len(values)) ** 0.5
    return max(0.0, middle - error), min(1.0, middle + error)
