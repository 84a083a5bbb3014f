"""Gains of changed scripts over the original, from runs in turn: pure arithmetic."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import mean, median
from typing import NamedTuple

from fastfeed.model.students_t import students_t

LONG_GAP, LEAST_GAP_S = 8.0, 0.02  # a pause: both times the median step and this long
FEW = 2  # pauses that a window may hold or not, by where it begins
ERROR = 0.05  # probability that something is called a gain without being one
MIN_SPREAD = 0.01  # between runs of one script, standard deviation; two runs may agree by chance


class Gain(NamedTuple):
    """How much faster a script is than another one, with its 95 % interval, and what it is at
    `least`, for the best one of several."""

    speedup: float
    interval: tuple[float, float]
    least: float


class Pace(NamedTuple):
    """Seconds from step to step of a run."""

    gaps: tuple[float, ...]

    @property
    def long_s(self) -> float:
        """Seconds from which on a gap may be a pause."""
        return max(LONG_GAP * median(self.gaps), LEAST_GAP_S)

    def pauses(self, long_s: float) -> list[int]:
        """Return the numbers of the gaps that are longer."""
        return [number for number, gap in enumerate(self.gaps) if gap > long_s]

    @property
    def cycle_s(self) -> float:
        """Seconds from pause to pause; 0 if they are too few to tell."""
        pauses = self.pauses(self.long_s) if self.gaps else []
        if len(pauses) <= FEW:
            return 0.0
        return sum(self.gaps[pauses[0] + 1 : pauses[-1] + 1]) / (len(pauses) - 1)

    def rate(self, long_s: float) -> float:
        """Return steps/s.

        With several pauses it counts from the first to the last, if most steps lie between them: a
        window that cuts off a part of an epoch would count too many or too few of them.
        """
        pauses, gaps = self.pauses(long_s), self.gaps
        whole = gaps[pauses[0] + 1 : pauses[-1] + 1] if len(pauses) > FEW else ()
        gaps = whole if len(whole) > len(gaps) / 2 else gaps
        return len(gaps) / sum(gaps)

    def steady(self, long_s: float) -> float:
        """Return steps/s without the pauses."""
        gaps = [gap for gap in self.gaps if gap <= long_s]
        return len(gaps) / sum(gaps)


NO_PACE = Pace(())


class Spread(NamedTuple):
    """Standard deviation of the logarithms of rates, and its degrees of freedom."""

    deviation: float
    freedom: int


def pace_of(times: Sequence[float]) -> Pace:
    """Return the pace of a run from the times of its steps."""
    return Pace(tuple(b - a for a, b in itertools.pairwise(times)))


def comparable(
    before: Sequence[Pace], after: Sequence[Pace] = ()
) -> tuple[list[float], list[float]]:
    """Return steps/s of runs of two scripts that mean the same.

    A pause is what is long for each of the runs. Where some window holds so few that it may hold
    them by chance, and all may have as many for each step, they are left out. Otherwise pauses came
    with a change, or went: they count, but for the few of a run before, whose rate is then not too
    low.
    """
    runs = [*before, *after]
    long_s = max((run.long_s for run in runs), default=0.0)
    counts = [(len(run.pauses(long_s)), len(run.gaps)) for run in runs]
    chance = any(0 < pauses <= FEW for pauses, _ in counts)
    fewest = max(((n - 1) / of for n, of in counts), default=0.0)  # for each step, of some run
    most = min(((n + 1) / of for n, of in counts), default=0.0)
    if chance and fewest <= most:
        return [run.steady(long_s) for run in before], [run.steady(long_s) for run in after]
    few = [len(run.pauses(long_s)) <= FEW for run in before]
    one = [
        run.steady(long_s) if some else run.rate(long_s)
        for run, some in zip(before, few, strict=True)
    ]
    return one, [run.rate(long_s) for run in after]


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
