"""Search for the number of producers with which a training is fastest, from windows of the running
job."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

TIE = 0.02  # relative difference of two rates that is no difference; the fewer producers win
STARVING = 0.02  # starvation from which more producers may gain
CHANGED = 0.15  # relative change of the rate of another training
CLEAR = 2.5  # standard errors of a difference that is no noise
MAX_ALTERNATIONS = 2  # windows of a number that is hard to tell from the kept one
MAX_GROWTH = 4.0  # of the number in one step
BLOCKED = 0.1  # share of their time for which producers without room are many enough
NEAR = 0.125  # relative difference of two numbers that need not be told apart
SPARE = 1.1  # producers above the number that the means ask for: batches differ


class TrainingWindow(NamedTuple):
    """What a training did with so many producers: steps/s with their relative standard error, the
    starvation (0 to 1), the share of the producers' time in which they had room, and the batches/s
    that they would make if they always had, with their relative standard error; all of that in
    `seconds`. `blocked`: the share of the producers' time in which they waited for room."""

    producers: int
    rate: float
    error: float
    starvation: float
    used: float
    capacity: float = 0.0
    capacity_error: float = 0.0
    seconds: float = 1.0
    blocked: float = 0.0

    @property
    def waits(self) -> bool:
        """True if steps wait, so that more producers may gain."""
        return self.starvation > STARVING

    @property
    def enough(self) -> int:
        """The producers that would make as much if they always had room."""
        return math.ceil(self.producers * self.used * SPARE)

    @property
    def spares(self) -> bool:
        """True if the producers are more than enough."""
        return self.enough <= self.producers - _gap(self.producers, self.error)

    def makes_more(self, than: TrainingWindow) -> bool:
        """Return True if these producers may make more than fewer others, half as many more at
        least as in proportion to their number."""
        if not (self.capacity > 0 and than.capacity > 0):
            return False
        error = math.hypot(self.capacity_error, than.capacity_error)
        proportion = math.log(self.producers / than.producers)
        return math.log(self.capacity / than.capacity) + error > max(TIE, proportion / 2)

    @property
    def held_up(self) -> bool:
        """True if steps wait while producers have no room: what is ready waits for a late batch."""
        return self.waits and self.blocked > BLOCKED


class Comparison(NamedTuple):
    """Result of a tried number against the kept one: what was kept, and windows of both."""

    before: TrainingWindow
    after: TrainingWindow
    kept: bool


class CountSearch:
    """Search that starts at `count`. Measure a window with `wanted` producers and `add` it, until
    `over`; then `wanted` is the least number that is as fast as any, or the best of `tries`, of
    which the first is a number of `fewer`.

    It assumes that the rate rises up to some number, and then stays or falls.
    """

    def __init__(self, count: int, *, tries: float = math.inf, fewer: bool = False) -> None:
        self.count = self.wanted = count
        self._tries = tries
        self._fewer_first = fewer
        # A try beside a number that was found is short, and is kept for its rate only.
        self.thorough = tries == math.inf
        self.over = not tries
        self._rival: int | None = None  # number that is hard to tell from the kept one
        self._again: set[int] = set()  # numbers whose first window was in doubt
        self._checks = False  # the kept number is measured again
        self._known: dict[int, list[TrainingWindow]] = {}

    def add(self, window: TrainingWindow, *, most: int) -> Comparison | None:
        """Add a window of `wanted` producers, of which there may be `most`; return what is decided
        by it."""
        if window.producers == self.count:
            if self._checks and abs(_gain(self.of(self.count), window)[0]) > self._least(window):
                self._known, self._again = {}, set()  # another training than that of the others
            self._checks = False
            self._known.setdefault(window.producers, []).append(window)
            self._go_on(most)
            return None
        self._known.setdefault(window.producers, []).append(window)
        before, after = self.of(self.count), self.of(window.producers)
        better = self._is_better(before, after)
        if better is None:
            self._rival, self.wanted = window.producers, self.count
            return None
        self._rival = None
        self._tries -= 1
        if better:
            self.count = window.producers
        if better or not self.thorough:
            self._go_on(most)
        else:  # in turn: both may have changed since
            self._checks, self.wanted = True, self.count
        return Comparison(before, after, better)

    def _least(self, window: TrainingWindow) -> float:
        """Return the least difference of logarithms from what is known of the kept number that is
        another training."""
        return max(CHANGED, CLEAR * math.hypot(self.of(self.count).error, window.error))

    def end(self) -> None:
        """End the search with what is known."""
        self.wanted, self.over = self.count, True

    def of(self, count: int) -> TrainingWindow:
        """Return the mean of all windows with so many producers."""
        return mean(self._known[count])

    def decides(self, window: TrainingWindow) -> bool:
        """Return True if a window says enough, however well its rate is known: it is the first one,
        or clearly better, or fewer producers are clearly worse. That more are worse is a surprise
        while steps wait, and takes a whole window."""
        if window.producers == self.count:
            return self._rival is None
        before = self.of(self.count)
        gain, least = _gain(before, window)
        surprises = window.producers > self.count and before.waits and gain < least
        return not surprises and _is_clear(before, window)

    def _is_better(self, before: TrainingWindow, after: TrainingWindow) -> bool | None:
        """Return True if a number is to be kept instead of that before, None to look again. What is
        not clear in the end changes nothing."""
        fewer = after.producers < before.producers
        gain, least = _gain(before, after)
        if _is_clear(before, after):
            return gain > least
        if fewer and not after.waits:
            return True  # no other number can gain
        last = len(self._known[after.producers]) >= (MAX_ALTERNATIONS if self.thorough else 1)
        # where steps wait for what more producers do make, more do not hurt
        if self.thorough and fewer and before.makes_more(after):
            return False
        if self.thorough and not fewer and after.makes_more(before) and (last or gain > 0):
            return True
        return False if last else None

    def _go_on(self, most: int) -> None:
        """Set the number that is to be measured next; the search is over if there is none."""
        found = self._rival
        if found is None and self._tries > 0:
            found = self._next(self.of(self.count), most)
        if found is None and self.thorough and self._doubts():
            return
        self.over = found is None
        self.wanted = found or self.count

    def _doubts(self) -> bool:
        """Return True if the number below is to be measured again, after the kept one: its only
        window says that each producer was slower than beside more others, so that something else
        took the cores for a while."""
        now, below = self.of(self.count), max((n for n in self._known if n < self.count), default=0)
        if not (now.waits and below) or below in self._again:
            return False
        then = self.of(below)
        faster = math.log(now.rate / now.producers) - math.log(then.rate / below)
        if faster <= CLEAR * math.hypot(now.error, then.error):
            return False
        self._again.add(below)
        self._known[below] = []
        self._rival, self.wanted = below, self.count
        return True

    def _next(self, now: TrainingWindow, most: int) -> int | None:
        count, known = now.producers, self._known
        above = min((n for n in known if n > count), default=None)
        below = max((n for n in known if n < count), default=0)
        fewer = self._fewer(now, below)
        if not now.waits or (self._fewer_first and fewer and len(known) == 1):
            return fewer
        if above is None:
            growth = min(MAX_GROWTH, SPARE / max(1e-9, 1 - now.starvation))
            grown = min(most, max(count + 1, math.ceil(count * growth)))
            return grown if grown > count else fewer
        more = _middle(count, above, error=now.error)
        falls = self.of(above).rate < now.rate * (1 - TIE)
        return (fewer or more) if falls else (more or fewer)

    def _fewer(self, now: TrainingWindow, below: int) -> int | None:
        """Return a number below that of `now` which may be as fast; so many `below` are not."""
        if now.enough > below and now.spares:
            return now.enough
        if not (now.waits or now.spares):
            return None
        if below:  # no producer is faster beside more others
            below = max(below, math.ceil(below * now.rate * (1 - TIE) / self.of(below).rate) - 1)
        return _middle(below, now.producers, error=now.error)


def mean(windows: Sequence[TrainingWindow]) -> TrainingWindow:
    """Return the mean of all windows with one number of producers, weighted by their time."""
    seconds = sum(one.seconds for one in windows)
    shares = [one.seconds / seconds for one in windows]
    columns = list(zip(*windows, strict=True))
    rate, error, starvation, used, capacity, capacity_error = columns[1:-2]
    return TrainingWindow(
        windows[0].producers,
        sum(map(operator.mul, shares, rate)),
        math.hypot(*map(operator.mul, shares, error)),
        sum(map(operator.mul, shares, starvation)),
        sum(map(operator.mul, shares, used)),
        sum(map(operator.mul, shares, capacity)),
        math.hypot(*map(operator.mul, shares, capacity_error)),
        seconds,
        sum(map(operator.mul, shares, columns[-1])),
    )


def _gain(before: TrainingWindow, after: TrainingWindow) -> tuple[float, float]:
    """Return the gain as a logarithm of rates, and the least that decides."""
    fewer = after.producers < before.producers
    return math.log(after.rate / before.rate), -TIE if fewer else TIE


def _is_clear(before: TrainingWindow, after: TrainingWindow) -> bool:
    gain, least = _gain(before, after)
    return abs(gain - least) > CLEAR * math.hypot(before.error, after.error)


def _gap(count: int, error: float) -> int:
    """Return the difference of two numbers that need not be told apart, or cannot."""
    return max(1, int(count * max(NEAR, error)))


def _middle(low: int, high: int, *, error: float) -> int | None:
    """Return a number between two, or None where they are near."""
    return (low + high + 1) // 2 if high - low > _gap(low, error) else None
