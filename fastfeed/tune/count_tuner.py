"""The number of producers of a running feed: measured in windows, searched, and looked after."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median

from fastfeed.core.stats import Decision, Snapshot, StageRow
from fastfeed.tune.count_search import STARVING, CountSearch, TrainingWindow

LEAST_WINDOW_S, LONG_WINDOW_S = 0.7, 4.0
NOISY_WINDOW_S, SMALL_ERROR = 2.5, 0.02  # a window goes on until its rate is known so well
MIN_BATCHES, FEW_BATCHES = 12, 3  # of a window, and of one that takes long
MAX_SETTLING_S = 3.0  # longest wait for the end of batches that were made before a change
WATCH_WINDOW_S = 2.0
ERROR_BLOCKS = 6  # of a window, from which the error of its rate is estimated
LEAST_ERROR = 0.005  # of a rate: windows follow each other, and neighbours differ more
PAUSED = 10.0  # times the time of a step: no step, but a pause of the training
CHANGED = 0.15  # relative change of the rate, or change of the starvation, of another training
SEARCH_AGAIN_S = 60.0  # before another number is tried while steps wait; doubled if in vain
MAX_HISTORY = 200  # decisions that are remembered
NOTHING_YET = Snapshot(0.0, StageRow(), StageRow(), 0, 0, ())
FIRST_S = 2.0  # without a batch, after which producers are doubled


class WindowMeter:
    """Measurement of windows of at least `seconds` with `count` producers, after the batches that
    others have begun."""

    def __init__(self, count: int, now: Snapshot, *, seconds: float = LEAST_WINDOW_S) -> None:
        self._count = count
        self._seconds = seconds
        self._begin = self._last = now
        self._settles_at = now.consumed.batches + now.depth + count
        self._settled = False
        self._own_s: deque[float] = deque(maxlen=64)  # of steps, without waits
        self._gaps: list[tuple[float, int]] = []  # seconds, and steps in them

    def look(
        self, now: Snapshot, decides: Callable[[TrainingWindow], bool]
    ) -> TrainingWindow | None:
        """Return the window that is complete now: its rate is known well, or it `decides`."""
        taken = now.consumed.batches - self._last.consumed.batches
        if not self._settled:
            late = now.taken_s - self._begin.taken_s > MAX_SETTLING_S
            self._settled = now.consumed.batches >= self._settles_at or late
            if self._settled:
                self._restart(now)
            return None
        if taken <= 0:
            return None
        gap_s = now.taken_s - self._last.taken_s
        own_s = (gap_s - (now.consumed.wait_in_s - self._last.consumed.wait_in_s)) / taken
        if self._own_s and own_s > max(PAUSED * median(self._own_s), self._seconds):
            self._restart(now)
            return None
        self._own_s.append(own_s)
        self._gaps.append((gap_s, taken))
        self._last = now
        seconds, steps = map(sum, zip(*self._gaps, strict=True))
        if seconds < self._seconds or steps < (
            FEW_BATCHES if seconds > LONG_WINDOW_S else MIN_BATCHES
        ):
            return None
        window = self._window(now, seconds=seconds, steps=steps)
        known = window.error <= SMALL_ERROR or seconds >= NOISY_WINDOW_S
        if not known and not decides(window):
            return None
        self._restart(now)
        return window

    def _restart(self, now: Snapshot) -> None:
        self._begin = self._last = now
        self._gaps = []

    def _window(self, now: Snapshot, *, seconds: float, steps: float) -> TrainingWindow:
        begin, period_s = self._begin, seconds / steps
        residues = [gap_s - period_s * taken for gap_s, taken in _blocks(self._gaps, seconds)]
        error = max(LEAST_ERROR, math.sqrt(sum(one**2 for one in residues)) / seconds)
        waited_s = now.consumed.wait_in_s - begin.consumed.wait_in_s
        busy_s = now.produced.busy_s - begin.produced.busy_s
        return TrainingWindow(
            self._count,
            1 / period_s,
            error,
            min(1.0, max(0.0, waited_s / seconds)),
            min(1.0, busy_s / (self._count * seconds)) or 1.0,
        )


def _blocks(gaps: Sequence[tuple[float, int]], seconds: float) -> list[tuple[float, int]]:
    """Join gaps to some blocks: a slow batch is followed by those that were ready behind it, so
    that the errors of neighbours cancel out."""
    found: list[tuple[float, int]] = []
    block_s, block_taken = 0.0, 0
    for gap_s, taken in gaps:
        block_s, block_taken = block_s + gap_s, block_taken + taken
        if block_s >= seconds / ERROR_BLOCKS:
            found.append((block_s, block_taken))
            block_s, block_taken = 0.0, 0
    return [*found, (block_s, block_taken)]


class CountTuner:
    """Tuner of the number of producers, `knob` by name, which begins with `count`.

    `limits` returns the most that there may be, and why. `look` at a snapshot from time to time,
    and have as many producers as it returns. Decisions are at `now_s`, in seconds.
    """

    def __init__(
        self, knob: str, count: int, *, limits: Callable[[Snapshot, int], tuple[int, str]]
    ) -> None:
        self.history: tuple[Decision, ...] = ()
        self._knob = knob
        self._limits = limits
        self._search = CountSearch(count)
        self._meter: WindowMeter | None = None
        self._begin_s: float | None = None
        self._now, self._now_s = NOTHING_YET, 0.0
        self._reference: TrainingWindow | None = None  # what the number that was found does
        self._odd = 0  # windows in a row that differ from it
        self._retry_s, self._retries = math.inf, 0

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
            f"{1 - found.used:.0%} of theirs"
        )

    def look(self, now: Snapshot, now_s: float) -> int:
        """Return the number of producers to have from now on."""
        self._now, self._now_s = now, now_s
        if self._begin_s is None:
            self._begin_s = now_s
        most, why = self._limits(now, self._search.wanted)
        if self._search.wanted > most:
            self._decide(self._search.wanted, most, why=f"{why} allows no more")
            self._begin_search(most)
        elif self._meter is None:
            self._start(most)
        elif (window := self._meter.look(now, self._decides)) is not None:
            if self._search.over:
                self._watch(window)
            else:
                self._add(window, most)
        return self._search.wanted

    def _decides(self, window: TrainingWindow) -> bool:
        return not self._search.over and self._search.decides(window)

    def _start(self, most: int) -> None:
        """Begin to measure with the first batch. Where it does not come, let more be made."""
        count, since_s = self._search.wanted, self._now_s - (self._begin_s or 0.0)
        if self._now.consumed.batches:
            self._meter = WindowMeter(count, self._now)
        elif not self._now.depth and since_s > FIRST_S * count and count < most:
            grown = min(2 * count, most)
            self._decide(count, grown, why="no batch is ready yet")
            self._search = CountSearch(grown)

    def _add(self, window: TrainingWindow, most: int) -> None:
        found = self._search.add(window, most=most)
        if found is not None:
            before, after, kept = found
            rates = f"{before.rate:.3g} -> {after.rate:.3g} steps/s"
            waits = f"{before.starvation:.0%} -> {after.starvation:.0%} of the time waited"
            self._decide(before.producers, after.producers, why=f"{rates}, {waits}", kept=kept)
            self._retries = 0 if kept else self._retries
        count = self._search.wanted
        if self._search.over:
            self._reference, self._odd = self._search.of(count), 0
            self._retry_s = self._now_s + SEARCH_AGAIN_S * 2**self._retries
            self._meter = WindowMeter(count, self._now, seconds=WATCH_WINDOW_S)
        elif count != window.producers:
            self._meter = WindowMeter(count, self._now)

    def _watch(self, window: TrainingWindow) -> None:
        """Search again where the training is another one, or still waits after a while."""
        known = self._reference
        assert known is not None
        apart = abs(math.log(window.rate / known.rate)) > CHANGED
        apart = apart or abs(window.starvation - known.starvation) > CHANGED
        self._odd = self._odd + 1 if apart else 0
        if self._odd > 1:
            self._retries = 0
            self._begin_search(window.producers)
        elif window.starvation > STARVING and self._now_s >= self._retry_s:
            self._retries += 1
            self._begin_search(window.producers, tries=1)

    def _begin_search(self, count: int, *, tries: float = math.inf) -> None:
        self._search = CountSearch(count, tries=tries)
        self._meter = WindowMeter(count, self._now) if self._now.consumed.batches else None

    def _decide(self, before: int, after: int, *, why: str, kept: bool = True) -> None:
        decision = Decision(self._now_s, self._knob, before, after, kept, why)
        self.history = (*self.history[-MAX_HISTORY:], decision)
