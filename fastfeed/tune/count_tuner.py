"""The number of producers of a running feed: measured in windows, searched, and looked after."""

from __future__ import annotations

import math
from collections.abc import Callable

from fastfeed.core.stats import Decision, Snapshot, StageRow
from fastfeed.tune.count_search import CHANGED, CLEAR, CountSearch, TrainingWindow
from fastfeed.tune.window_meter import WindowMeter

WATCH_WINDOW_S = 2.0
SEARCH_AGAIN_S = 60.0  # before another number is tried while steps wait; doubled if in vain
CHANGES_AT_ONCE = 2.0  # of a number that was found; then one in CHANGE_S, doubled if in vain
FIRST_CHANGES = 16  # after which the first search ends with what it knows
HELD_S = 30.0  # for which a limit that was too low counts as what it was; doubled if it comes again
MOST_OWED = 3.0  # by a search that goes on
ANOTHER = 1.5  # times the rate, or less by as much: another training, which waits for no debts
CHANGE_S, LONGEST_CHANGE_S = 60.0, 480.0
MAX_HISTORY = 200  # decisions that are remembered
NOTHING_YET = Snapshot(0.0, StageRow(), StageRow(), 0, 0, ())
FIRST_S = 2.0  # without a batch, after which producers are doubled


class ChangeBudget:
    """Changes of a number that was found: some at once, then one in a while."""

    def __init__(self) -> None:
        self._level, self._filled_s = CHANGES_AT_ONCE, -math.inf
        self._each_s = CHANGE_S
        self._forgiven_s = -math.inf

    def has(self, now_s: float) -> bool:
        """Return True if a change may begin."""
        self._fill(now_s)
        return self._level >= 1

    @property
    def is_over(self) -> bool:
        """True if a search is to end: it has made more changes than could be paid at once."""
        return self._level <= -MOST_OWED

    def spend(self, now_s: float) -> None:
        """Count a change; a search that has begun may owe some."""
        self._fill(now_s)
        self._level -= 1

    def forgive(self, now_s: float) -> None:
        """Let the next search begin within a minute or two, whatever the last ones found, if that
        was long ago."""
        if now_s >= self._forgiven_s + LONGEST_CHANGE_S:
            self._fill(now_s)
            self._level, self._each_s = max(self._level, -1.0), CHANGE_S
            self._forgiven_s = now_s

    def note(self, gained: bool) -> None:
        """Note what a search has found: those that find nothing become rare."""
        self._each_s = CHANGE_S if gained else min(2 * self._each_s, LONGEST_CHANGE_S)

    def _fill(self, now_s: float) -> None:
        more = (now_s - self._filled_s) / self._each_s
        self._level, self._filled_s = min(CHANGES_AT_ONCE, self._level + more), now_s


class CountTuner:
    """Tuner of the number of producers, `knob` by name, which begins with `count`; `producers` says
    how many that are in all.

    `limits` returns the most that there may be, and why. `look` at a snapshot from time to time,
    and have as many producers as it returns. Decisions are at `now_s`, in seconds.
    """

    def __init__(
        self,
        knob: str,
        count: int,
        *,
        limits: Callable[[Snapshot, int], tuple[int, str]],
        producers: Callable[[int], int] = int,
    ) -> None:
        self.history: tuple[Decision, ...] = ()
        self._knob = knob
        self._limits = limits
        self._search = CountSearch(count)
        self._begun_with: int | None = None  # the number that this search is to beat, if any
        self._meter = WindowMeter(producers)
        self._budget = ChangeBudget()
        self._begin_s: float | None = None
        self._now, self._now_s = NOTHING_YET, 0.0
        self._reference: TrainingWindow | None = None  # what the number that was found does
        self._odd, self._odd_windows = 0, 0  # how windows differ from it, and how many in a row
        self._retry_s, self._retries = math.inf, 0
        self._changes = 0  # in the first search
        self._unlimited, self._limit = 0, ""  # the number before a limit, and the limit
        self._held, self._held_s = 0, -math.inf  # the last limit that was too low, and when
        self._hold_s = HELD_S
        self._meter.begin(count, NOTHING_YET)

    @property
    def searches(self) -> bool:
        """True while windows are short."""
        return not self._search.over

    @property
    def held_up(self) -> str:
        """What the order of the batches costs with the number that was found, in words; "" if
        nothing is seen of it."""
        found = self._reference
        if found is None or self.searches or not found.held_up:
            return ""
        return (
            f"steps wait for {found.starvation:.0%} of the time, and producers for room for "
            f"{found.blocked:.0%} of theirs"
        )

    def propose(self, knob: str, value: int, *, why: str) -> None:
        """Note a value of an option that only the user may set."""
        self._note(Decision(self._now_s, knob, 0, value, kept=False, why=why, proposed=True))

    def begin_feed(self) -> None:
        """Go on with another feed, whose counters begin at 0."""
        self._meter.begin_feed()
        self._begin_s = None

    def look(self, now: Snapshot, now_s: float, *, measures: bool = True) -> int:
        """Return the number of producers to have from now on. While a new producer starts, nothing
        `measures`: only the limits count."""
        self._now, self._now_s = now, now_s
        if self._begin_s is None:
            self._begin_s = now_s
        before, first = self._search.wanted, self._begun_with is None and self.searches
        forced = False
        most, why = self._limits(now, before)
        if now_s < self._held_s + self._hold_s:
            most = min(most, self._held)
        if before > most:
            self._reduce(most, why)
            forced = True  # it is no change that a search may save
        elif self._unlimited and self._search.over and self._may_return(most):
            self._have(self._unlimited, why=f"{self._limit} allows it again")
            self._unlimited = 0
            self._budget.spend(now_s)  # it may be taken back
        elif measures and not now.consumed.batches:
            if self._begun_with is None:  # a later feed may begin as slowly with what was found
                self._wait_for_first(most)
        elif measures and (window := self._meter.look(now, self._decides)) is not None:
            if self._search.over:
                self._watch(window)
            else:
                self._add(window, most)
        if self._search.wanted != before:
            self._changes += first
            if not (first or forced):
                self._budget.spend(now_s)
        return self._search.wanted

    def _decides(self, window: TrainingWindow) -> bool:
        return not self._search.over and self._search.decides(window)

    def _wait_for_first(self, most: int) -> None:
        """Let more be made where nothing comes."""
        count, since_s = self._search.wanted, self._now_s - (self._begin_s or 0.0)
        nothing = not self._now.produced.batches and not self._now.depth
        if nothing and since_s > FIRST_S * count and count < most:
            grown = min(2 * count, most)
            self._decide(count, grown, why="no batch is ready yet")
            self._begin_search(grown)

    def _add(self, window: TrainingWindow, most: int) -> None:
        found = self._search.add(window, most=most)
        if self._budget.is_over if self._begun_with else self._changes >= FIRST_CHANGES:
            self._search.end()
        if found is not None:
            before, after, kept = found
            rates = f"{before.rate:.3g} -> {after.rate:.3g} steps/s"
            waits = f"{before.starvation:.0%} -> {after.starvation:.0%} of the time waited"
            self._decide(before.producers, after.producers, why=f"{rates}, {waits}", kept=kept)
            self._retries = 0 if kept else self._retries
        count = self._search.wanted
        if self._search.over:
            self._meter.begin(count, self._now)
            if self._begun_with is not None and self._search.thorough:
                self._budget.note(gained=count != self._begun_with)
            self._begun_with = count
            self._unlimited = self._unlimited if count == most else 0
            self._watch_from(self._search.of(count))
        elif count != window.producers:
            self._meter.begin(count, self._now)

    def _watch_from(self, reference: TrainingWindow | None) -> None:
        """Watch the present number, which does as `reference` says, or the first window."""
        self._reference, self._odd_windows = reference, 0
        self._retry_s = self._now_s + SEARCH_AGAIN_S * 2**self._retries
        self._meter.begin(self._search.wanted, self._now, seconds=WATCH_WINDOW_S)

    def _watch(self, window: TrainingWindow) -> None:
        """Search again where the training is another one, or still waits after a while."""
        known = self._reference
        if known is None:
            self._reference = window
            return
        odd = _difference(known, window)
        self._odd_windows = self._odd_windows + 1 if odd and odd == self._odd else bool(odd)
        self._odd = odd
        if self._odd_windows > 1 and abs(math.log(window.rate / known.rate)) > math.log(ANOTHER):
            self._budget.forgive(self._now_s)
        if not self._budget.has(self._now_s):
            return
        if self._odd_windows > 1:
            self._retries = 0
            self._begin_search(window.producers)
        elif window.waits and self._now_s >= self._retry_s:
            self._retries += 1
            fewer = self._retries % 2 == 0
            self._begin_search(window.producers, tries=1, fewer=fewer)

    def _reduce(self, most: int, why: str) -> None:
        """Have no more than a limit allows. A search goes on below it."""
        search = self._search
        if self._now_s >= self._held_s + self._hold_s:  # another time
            again = self._now_s < self._held_s + 3 * self._hold_s
            self._hold_s = min(2 * self._hold_s, LONGEST_CHANGE_S) if again else HELD_S
        self._held, self._held_s = most, self._now_s
        if search.count > most:
            self._unlimited, self._limit = max(self._unlimited, search.count), why
        if search.over:
            self._have(most, why=f"{why} allows no more")
            return
        count = min(search.count, most)
        self._decide(search.wanted, count, why=f"{why} allows no more")
        self._begin_search(count)

    def _may_return(self, most: int) -> bool:
        return most >= self._unlimited and self._budget.has(self._now_s)

    def _have(self, count: int, *, why: str) -> None:
        """Have a number without a search."""
        self._decide(self._search.wanted, count, why=why)
        self._search = CountSearch(count, tries=0)
        self._watch_from(None)

    def _begin_search(self, count: int, *, tries: float = math.inf, fewer: bool = False) -> None:
        self._search = CountSearch(count, tries=tries, fewer=fewer)
        self._meter.begin(count, self._now)

    def _decide(self, before: int, after: int, *, why: str, kept: bool = True) -> None:
        self._note(Decision(self._now_s, self._knob, before, after, kept, why))

    def _note(self, decision: Decision) -> None:
        self.history = (*self.history[-MAX_HISTORY:], decision)


def _difference(known: TrainingWindow, now: TrainingWindow) -> int:
    """Return how a training differs from what is known, as a number for each way; 0 if in none."""
    least = max(CHANGED, CLEAR * math.hypot(known.error, now.error))
    faster, waits = math.log(now.rate / known.rate), now.starvation - known.starvation
    if abs(faster) > least:
        return 1 if faster > 0 else -1
    if abs(waits) > least:
        return 2 if waits > 0 else -2
    return 3 if now.spares and now.used < known.used * (1 - CHANGED) else 0
