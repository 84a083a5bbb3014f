"""Ratio of two speeds with its uncertainty: arithmetic over the repeats of two sides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

import numpy as np

FASTER, SLOWER, NO_DIFFERENCE, NO_SPREAD = (
    "faster",
    "slower",
    "no difference seen",
    "unknown: one run has no spread",
)
CONFIDENCE = 0.95
GRID = 400  # steps of an integral


@dataclass(frozen=True)
class Ratio:
    """A speed-up (the ratio of the geometric means), with its 95 % interval; nan if there is
    none."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """FASTER or SLOWER if the interval does not include 1, UNKNOWN if there is none."""
        if math.isnan(self.low):
            return NO_SPREAD
        if self.low > 1:
            return FASTER
        return SLOWER if self.high < 1 else NO_DIFFERENCE


@dataclass(frozen=True)
class Pair:
    """The rates of one setting on either side, one for each repeat, all above 0."""

    before: tuple[float, ...]
    after: tuple[float, ...]


def ratio(pair: Pair) -> Ratio:
    """Return how many times as fast `after` is."""
    return overall([pair])


def overall(pairs: Sequence[Pair]) -> Ratio:
    """Return the geometric mean of the pairs' ratios.

    The interval is Welch's (unequal variances, Satterthwaite's degrees of freedom) over the
    logarithms of the rates: independent of which side comes first, and of the order of repeats and
    pairs. It needs two repeats.
    """
    sides = [
        [math.log(rate) for rate in side] for pair in pairs for side in (pair.before, pair.after)
    ]
    gains = [
        fmean(after) - fmean(before) for before, after in zip(sides[::2], sides[1::2], strict=True)
    ]
    middle = math.fsum(gains) / len(gains)
    if min(map(len, sides)) < 2:
        return Ratio(math.exp(middle), math.nan, math.nan)
    errors = [(variance(side) / len(side) / len(pairs) ** 2, len(side) - 1) for side in sides]
    squared = math.fsum(error for error, _ in errors)
    if squared < 1e-24:  # all repeats are equal: the rest is rounding
        middle = 0.0 if abs(middle) < 1e-12 else middle
        return Ratio(math.exp(middle), math.exp(middle), math.exp(middle))
    freedom = squared**2 / math.fsum(error**2 / count for error, count in errors)
    reach = students_t(freedom) * math.sqrt(squared)
    return Ratio(math.exp(middle), math.exp(middle - reach), math.exp(middle + reach))


def students_t(freedom: float) -> float:
    """Return the two-sided 95 % quantile of Student's t for `freedom` (1 or more) degrees of
    freedom."""
    low, high = 0.0, 1.0
    while _within(high, freedom) < CONFIDENCE:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < CONFIDENCE else (low, middle)
    return high


def _within(t: float, freedom: float) -> float:
    """Return the share of Student's t between -t and t. With t = sqrt(freedom) tan(a) its density
    is a power of a cosine, which Simpson's rule integrates."""
    end = math.atan(t / math.sqrt(freedom))
    heights = np.cos(np.linspace(0, end, GRID + 1)) ** (freedom - 1)
    inner = 4 * heights[1:-1:2].sum() + 2 * heights[2:-1:2].sum()
    area = float(heights[0] + inner + heights[-1]) * end / (3 * GRID)
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    return 2 * area * math.exp(scale) / math.sqrt(math.pi)
