"""Gains of changed scripts over the original, from runs in turn: pure arithmetic."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import mean, median
from typing import NamedTuple

from fastfeed.model.students_t import students_t

LONG_GAP, LEAST_GAP_S = 8.0, 0.02  # a pause: both times the median step and this long
MIN_SPREAD = 0.01  # between runs of one script, standard deviation; two runs may agree by chance


class Gain(NamedTuple):
    """How much faster a script is than another one, with its 95 % interval."""

    speedup: float
    interval: tuple[float, float]


def steady_rate(times: Sequence[float]) -> tuple[float, int]:
    """Return steps/s from the times of steps, and the number of pauses between them.

    With several pauses it counts from the first to the last: a window that cuts off a part of an
    epoch would count too many or too few of them.
    """
    gaps = [b - a for a, b in itertools.pairwise(times)]
    long = max(LONG_GAP * median(gaps), LEAST_GAP_S)
    ends = [i + 1 for i, gap in enumerate(gaps) if gap > long]
    first, last = (ends[0], ends[-1]) if len(ends) > 2 else (0, len(times) - 1)
    return (last - first) / (times[last] - times[first]), len(ends)


def gain_of(before: Sequence[float], after: Sequence[float], *, spread: float) -> Gain:
    """Return the gain from the rates of runs of both scripts, whose logarithms have this standard
    deviation.

    The interval is that of a difference of means with a pooled deviation (Student, 1908).
    """
    one, two = ([math.log(rate) for rate in rates] for rates in (before, after))
    middle = mean(two) - mean(one)
    freedom = max(1, len(one) + len(two) - 2)
    wide = students_t(freedom) * spread * math.sqrt(1 / len(one) + 1 / len(two))
    return Gain(math.exp(middle), (math.exp(middle - wide), math.exp(middle + wide)))


def spread_of(groups: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation of the logarithms of rates around the mean of their group."""
    squares, freedom = 0.0, 0
    for rates in groups:
        logs = [math.log(rate) for rate in rates]
        squares += sum((one - mean(logs)) ** 2 for one in logs)
        freedom += len(logs) - 1
    return max(MIN_SPREAD, math.sqrt(squares / freedom)) if freedom > 0 else MIN_SPREAD
