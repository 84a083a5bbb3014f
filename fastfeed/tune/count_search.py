"""Search for the number of producers with which a training is fastest, from windows of the running
job."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

TIE = 0.02  # relative difference of two rates that is no difference; the fewer producers win
STARVING = 0.02  # starvation from which more producers may gain
CLEAR = 2.0  # standard errors of a difference that is no noise
MAX_ALTERNATIONS = 3  # windows of a number that is hard to tell from the kept one
MAX_GROWTH = 4.0  # of the number in one step
BLOCKED = 0.1  # share of their time for which producers without room are many enough
SPARE = 1.1  # producers above the number that the means ask for: batches differ


class TrainingWindow(NamedTuple):
    """What a training did with so many producers: steps/s with their relative standard error, the
    starvation (0 to 1), and the share of the producers' time in which they had room."""

    producers: int
    rate: float
    error: float
    starvation: float
    used: float

    @property
    def held_up(self) -> bool:
        """True if steps wait while producers have no room: what is ready waits for a late batch."""
        return self.starvation > STARVING and self.used < 1 - BLOCKED


class Comparison(NamedTuple):
    """Result of a tried number against the kept one: what was kept, and windows of both."""

    before: TrainingWindow
    after: TrainingWindow
    kept: bool


class CountSearch:
    """Search that starts at `count`. Measure a window with `wanted` producers and `add` it, until
    `over`; then `wanted` is the least number that is as fast as any, or the best of `tries`.

    It assumes that the rate rises up to some number, and then stays or falls.
    """

    def __init__(self, count: int, *, tries: float = math.inf) -> None:
        self.count = self.wanted = count
        self._tries = tries
        self.over = False
        self._rival: int | None = None  # number that is hard to tell from the kept one
        self._known: dict[int, list[TrainingWindow]] = {}

    def add(self, window: TrainingWindow, *, most: int) -> Comparison | None:
        """Add a window of `wanted` producers, of which there may be `most`; return what is decided
        by it."""
        self._known.setdefault(window.producers, []).append(window)
        if window.producers == self.count:
            self._go_on(most)
            return None
        before, after = self.of(self.count), self.of(window.producers)
        better = self._is_better(before, after)
        if better is None:
            self._rival, self.wanted = window.producers, self.count
            return None
        self._rival = None
        self._tries -= 1
        if better:
            self.count = window.producers
        self._go_on(most)
        return Comparison(before, after, better)

    def of(self, count: int) -> TrainingWindow:
        """Return the mean of all windows with so many producers."""
        return mean(self._known[count])

    def decides(self, window: TrainingWindow) -> bool:
        """Return True if a window says enough, however well its rate is known: it is the first one,
        or clearly better or worse."""
        if window.producers == self.count:
            return self._rival is None
        before = self.of(self.count)
        return self._margin(before, window) > CLEAR * math.hypot(before.error, window.error)

    def _margin(self, before: TrainingWindow, after: TrainingWindow) -> float:
        """Return how far a gain is from what decides, as a logarithm of rates."""
        least = -TIE if after.producers < before.producers else TIE
        return abs(math.log(after.rate / before.rate) - least)

    def _is_better(self, before: TrainingWindow, after: TrainingWindow) -> bool | None:
        """Return True if a number is to be kept instead of that before, None to look again."""
        gain, error = math.log(after.rate / before.rate), math.hypot(before.error, after.error)
        # what is not clear at the end is a tie
        fewer, last = (
            after.producers < before.producers,
            len(self._known[after.producers]) >= MAX_ALTERNATIONS,
        )
        least = -TIE if fewer else TIE
        if abs(gain - least) > CLEAR * error:
            return gain > least
        return gain - (0 if fewer else error) > least if last else None

    def _go_on(self, most: int) -> None:
        """Set the number that is to be measured next; the search is over if there is none."""
        found = self._rival
        if found is None and self._tries > 0:
            found = self._next(self.of(self.count), most)
        self.over = found is None
        self.wanted = found or self.count

    def _next(self, now: TrainingWindow, most: int) -> int | None:
        count, known = now.producers, self._known
        above = min((n for n in known if n > count), default=None)
        below = max((n for n in known if n < count), default=0)
        fewer = self._fewer(now, below)
        if now.starvation <= STARVING:
            return fewer
        if above is None:
            growth = min(MAX_GROWTH, SPARE / max(1e-9, 1 - now.starvation))
            grown = min(most, max(count + 1, math.ceil(count * growth)))
            return grown if grown > count else fewer
        more = _middle(count, above)
        falls = self.of(above).rate < now.rate * (1 - TIE)
        return (fewer or more) if falls else (more or fewer)

    def _fewer(self, now: TrainingWindow, below: int) -> int | None:
        """Return a number below that of `now` which may be as fast."""
        enough = max(below + 1, math.ceil(now.producers * now.used * SPARE))
        if enough < now.producers - _gap(now.producers) + 1:
            return enough
        return _middle(below, now.producers) if now.starvation > STARVING else None


def mean(windows: Sequence[TrainingWindow]) -> TrainingWindow:
    """Return the mean of windows with one number of producers, weighted alike."""
    number = len(windows)
    columns = list(zip(*windows, strict=True))
    rate, starvation, used = (sum(columns[i]) / number for i in (1, 3, 4))
    error = math.sqrt(sum(one.error**2 for one in windows)) / number
    return TrainingWindow(windows[0].producers, rate, error, starvation, used)


def _gap(count: int) -> int:
    """Return the difference of two numbers that need not be told apart."""
    return max(1, count // 8)


def _middle(low: int, high: int) -> int | None:
    """Return a number between two, or None where they are near."""
    return (low + high + 1) // 2 if high - low > _gap(low) else None
