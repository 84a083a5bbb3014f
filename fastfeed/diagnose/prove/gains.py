"""Gains of changed scripts over the original, from runs in turn: pure arithmetic."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import mean, median
from typing import NamedTuple

from fastfeed.model.students_t import students_t

LONG_GAP, LEAST_GAP_S = 8.0, 0.02  # a pause: both times the median step and this long
ERROR = 0.05  # probability that something is called a gain without being one
MIN_SPREAD = 0.01  # between runs of one script, standard deviation; two runs may agree by chance


class Gain(NamedTuple):
    """How much faster a script is than another one, with its 95 % interval, and what it is at
    `least`, for the best one of several."""

    speedup: float
    interval: tuple[float, float]
    least: float


class Pace(NamedTuple):
    """Steps/s of a run: on the `whole`, None if a window may hold one of its few pauses or not by
    chance, and without pauses."""

    whole: float | None
    steady: float


NO_PACE = Pace(None, 0.0)


class Spread(NamedTuple):
    """Standard deviation of the logarithms of rates, and its degrees of freedom."""

    deviation: float
    freedom: int


def steady_rate(times: Sequence[float]) -> tuple[float, int]:
    """Return steps/s from the times of steps, and the number of pauses between them.

    With several pauses it counts from the first to the last: a window that cuts off a part of an
    epoch would count too many or too few of them.
    """
    ends = _pauses(times)
    first, last = (ends[0], ends[-1]) if len(ends) > 2 else (0, len(times) - 1)
    return (last - first) / (times[last] - times[first]), len(ends)


def pace_of(times: Sequence[float]) -> Pace:
    """Return the pace of a run from the times of its steps."""
    rate, pauses = steady_rate(times)
    ends = set(_pauses(times))
    gaps = [b - a for i, (a, b) in enumerate(itertools.pairwise(times)) if i + 1 not in ends]
    return Pace(rate if pauses > 2 or not pauses else None, len(gaps) / sum(gaps))


def _pauses(times: Sequence[float]) -> list[int]:
    """Return the numbers of the steps behind pauses."""
    gaps = [b - a for a, b in itertools.pairwise(times)]
    long = max(LONG_GAP * median(gaps), LEAST_GAP_S)
    return [i + 1 for i, gap in enumerate(gaps) if gap > long]


def comparable(*groups: Sequence[Pace]) -> list[list[float]]:
    """Return steps/s that mean the same for all runs: with their pauses if that is known of each of
    them, else without."""
    whole = [[one.whole for one in group if one.whole is not None] for group in groups]
    if [*map(len, whole)] == [*map(len, groups)]:
        return whole
    return [[one.steady for one in group] for group in groups]


def gain_of(
    before: Sequence[float], after: Sequence[float], *, spread: Spread, looks: int = 1
) -> Gain:
    """Return the gain from the rates of runs of both scripts, where so many changes are looked at.

    The interval is that of a difference of means with a pooled deviation (Student, 1908), and the
    least value that of so many comparisons (Bonferroni; Dunn, 1961).
    """
    one, two = ([math.log(rate) for rate in rates] for rates in (before, after))
    middle = mean(two) - mean(one)
    error = spread.deviation * math.sqrt(1 / len(one) + 1 / len(two))
    wide = students_t(spread.freedom) * error
    widest = students_t(spread.freedom, 1 - ERROR / looks) * error
    interval = math.exp(middle - wide), math.exp(middle + wide)
    return Gain(math.exp(middle), interval, math.exp(middle - widest))


def spread_of(groups: Sequence[Sequence[float]]) -> Spread:
    """Return the spread of rates around the mean of their group."""
    squares, freedom = 0.0, 0
    for rates in groups:
        logs = [math.log(rate) for rate in rates]
        squares += sum((one - mean(logs)) ** 2 for one in logs)
        freedom += max(0, len(logs) - 1)
    found = math.sqrt(squares / freedom) if freedom else 0.0
    return Spread(max(MIN_SPREAD, found), max(1, freedom))
