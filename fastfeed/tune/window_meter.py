"""Windows of a running training: what it does with a number of producers, from its counters."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from statistics import median
from typing import NamedTuple

from fastfeed.core.stats import Snapshot
from fastfeed.tune.count_search import BLOCKED, TrainingWindow

LEAST_WINDOW_S, LONG_WINDOW_S = 0.7, 4.0
NOISY_WINDOW_S, SMALL_ERROR = 2.5, 0.01  # a window goes on until its rate is known so well
MIN_BATCHES, FEW_BATCHES = 12, 3  # of a window, and of one that takes long
SHORTEST = 0.3  # of both, for a window in which steps do nothing but wait: it may be a poor number
MAX_SETTLING_S = 3.0  # longest wait for the end of batches that were made before a change,
SETTLING_BATCHES = 2.0  # beside the time of so many of a producer's
ERROR_BLOCKS = 6  # of a window, from which the error of its rate is estimated
LEAST_ERROR = 0.005  # of a rate: windows follow each other, and neighbours differ more
LATELY = 0.9  # weight of the earlier windows when another one is added
PAUSED = 10.0  # times the time of a step: no step, but a pause of the training
OWN_TIMES = 15  # of steps that are remembered: a pause differs from most of them


class Gap(NamedTuple):
    """What happened between the last steps before two looks. `making_s`: seconds in which producers
    worked, or waited for what the trainer reads; `room_s`: waited for room; `fell`: by how many the
    ready batches fell."""

    seconds: float
    steps: int
    waited_s: float
    busy_s: float
    making_s: float
    room_s: float
    made: int
    fell: int

    @property
    def own_s(self) -> float:
        """Seconds that a step took, without its wait."""
        return (self.seconds - self.waited_s) / self.steps


class BatchSpread:
    """How much the batches of the last windows differ in what they take."""

    def __init__(self) -> None:
        self._squares = self._weight = 0.0

    def error(self, error: float, made: int) -> float:
        """Return the relative error of the mean of so many batches, whose own is `error`."""
        squares, weight = self._squares + (error * made) ** 2, self._weight + made
        return math.sqrt(squares / weight / made) if made else error

    def add(self, error: float, made: int) -> None:
        """Add a window of so many batches, with the error of their mean."""
        self._squares = LATELY * self._squares + (error * made) ** 2
        self._weight = LATELY * self._weight + made


class WindowMeter:
    """Measurement of windows of a training, one after another, whose numbers of producers
    `producers` returns. A window leaves out pauses, and batches that were made before it."""

    def __init__(self, producers: Callable[[int], int] = int) -> None:
        self._producers = producers
        self._count = 1
        self._seconds = LEAST_WINDOW_S
        self._last: Snapshot | None = None  # None: a feed begins
        self._settled = False
        self._settles_at, self._settles_s = 0, 0.0
        self._batch_s = 0.0  # of one producer
        self._cut = (0.0, 0.0)  # batches of the training, and those of producers in them, lately
        self._spread = BatchSpread()
        self._own_s: deque[float] = deque(maxlen=OWN_TIMES)
        self._gaps: list[Gap] = []

    def begin(self, count: int, now: Snapshot, *, seconds: float = LEAST_WINDOW_S) -> None:
        """Begin a window of at least `seconds` with `count`, after the batches that others have
        begun."""
        before, self._count = self._count, count
        self._seconds, self._gaps = seconds, []
        if before != count and self._last is not None:
            self._suspend(now, max(before, count))

    def begin_feed(self) -> None:
        """Go on with another feed, whose counters begin at 0."""
        self._last = None

    def look(
        self, now: Snapshot, decides: Callable[[TrainingWindow], bool]
    ) -> TrainingWindow | None:
        """Return the window that is complete now: its rate is known well, or it `decides`."""
        if self._last is None:
            self._suspend(now, self._count)
            return None
        gap = _between(self._last, now)
        if gap.steps <= 0:
            return None
        self._last = now
        paused = self._is_pause(gap)
        self._own_s.append(gap.own_s)
        if paused:
            self._suspend(now, self._count)
        elif not self._settled:
            late = now.taken_s > self._settles_s
            self._settled = late or now.consumed.batches >= self._settles_at
        else:
            self._gaps.append(gap)
            return self._complete(decides)
        return None

    def _suspend(self, now: Snapshot, count: int) -> None:
        """Leave out what is made, and what is in the making."""
        self._last = now
        self._settles_at = now.consumed.batches + now.depth + self._producers(count)
        self._settles_s = now.taken_s + MAX_SETTLING_S + SETTLING_BATCHES * self._batch_s
        self._settled = False

    def _is_pause(self, gap: Gap) -> bool:
        if not self._own_s:
            return False
        usual_s = median(self._own_s)
        excess_s = gap.seconds - gap.waited_s - gap.steps * usual_s
        return excess_s > max(PAUSED * usual_s, LEAST_WINDOW_S)

    def _complete(self, decides: Callable[[TrainingWindow], bool]) -> TrainingWindow | None:
        if any(map(self._is_pause, self._gaps)):  # the usual time was not known then
            self._gaps = []
        seconds, steps = (
            sum(one.seconds for one in self._gaps),
            sum(one.steps for one in self._gaps),
        )
        works = 1 - sum(one.waited_s for one in self._gaps) / max(1e-9, seconds)
        least = FEW_BATCHES if seconds > LONG_WINDOW_S else MIN_BATCHES
        part = min(1.0, seconds / self._seconds, steps / least)  # of a whole window
        made, fell = sum(one.made for one in self._gaps), sum(one.fell for one in self._gaps)
        even = made >= FEW_BATCHES * self._producers(self._count) and len(self._gaps) >= FEW_BATCHES
        if part < (max(SHORTEST, works) if even else 1):
            return None
        if made < fell - self._producers(self._count):  # most of it was made before
            self._gaps = []
            return None
        steps_before, made_before = self._cut
        cut = (steps_before + steps, max(1.0, made_before + made + fell))
        window = self._window(cut[0] / cut[1])
        # a window in which no batch is late looks certain
        spread = self._spread.error(window.capacity_error, made)
        likely = max(window.error, spread)
        known = part == 1 and (likely <= SMALL_ERROR or seconds >= NOISY_WINDOW_S)
        if not known and not decides(window._replace(error=likely)):
            return None
        self._spread.add(window.capacity_error, made)
        self._cut = (LATELY * cut[0], LATELY * cut[1])
        self._gaps = []
        error = likely if window.waits else window.error
        return window._replace(error=error, capacity_error=max(spread, window.capacity_error))

    def _window(self, cut: float) -> TrainingWindow:
        gaps, producers = self._gaps, self._producers(self._count)
        seconds, steps, waited_s, busy_s, making_s, room_s, made, fell = (
            sum(one[i] for one in gaps) for i in range(len(Gap._fields))
        )
        used = min(1.0, busy_s / (producers * seconds)) or 1.0
        self._batch_s = making_s / made if made else self._batch_s
        known = max(LEAST_ERROR, _error((one.steps, one.making_s, one.made) for one in gaps))
        noise = max(LEAST_ERROR, _error((one.steps, one.seconds, one.steps) for one in gaps))
        # what was made before it is used up at a rate that does not last, but for the last batches
        used_up = max(0, fell - producers)
        lacks = max(0.0, 1 - made / (made + used_up) / used) if used_up else 0.0
        found = TrainingWindow(
            self._count,
            steps / seconds,
            max(noise, lacks),
            min(1.0, max(0.0, waited_s / seconds, lacks)),
            used,
            capacity=producers * made / making_s if making_s > 0 else 0.0,
            capacity_error=known,
            seconds=seconds,
            blocked=room_s / (producers * seconds),
        )
        # all that is made is used, if each is at work but for the batch that it is to finish
        starves = found.waits and used >= max(0.5, 1 - BLOCKED - self._batch_s / seconds)
        if starves and found.capacity > 0:
            return found._replace(rate=found.capacity * cut, error=known, used=1.0)
        return found


def _between(last: Snapshot, now: Snapshot) -> Gap:
    """Return what happened between two looks."""
    read_s = [one.produced.read_s - sum(row.read_s for row in one.producers) for one in (last, now)]
    trainer_s = max(0.0, read_s[1] - read_s[0])  # the trainer's own reads, for its workers
    busy_s = max(0.0, now.produced.busy_s - last.produced.busy_s - trainer_s)
    input_s = now.produced.wait_in_s - last.produced.wait_in_s
    waits = [one.consumed.wait_in_s - one.consumed.busy_s for one in (last, now)]
    return Gap(
        now.taken_s - last.taken_s,
        now.consumed.batches - last.consumed.batches,
        waits[1] - waits[0],
        busy_s,
        busy_s + max(0.0, min(input_s, trainer_s * len(now.producers))),
        now.produced.wait_out_s - last.produced.wait_out_s,
        now.produced.batches - last.produced.batches,
        last.depth - now.depth,
    )


def _error(gaps: Iterable[tuple[int, float, int]]) -> float:
    """Return the relative standard error of amount / number, from (steps, amount, number) of gaps:
    of blocks of equally many steps, as a slow batch is followed by those that were ready behind
    it, so that the errors of neighbours cancel out."""
    rows = list(gaps)
    steps, amount, number = (sum(column) for column in zip(*rows, strict=True))
    if not amount or not number:
        return 0.0
    squares = 0.0
    block = [0.0, 0.0, 0.0]
    for i, row in enumerate(rows):
        block = [a + b for a, b in zip(block, row, strict=True)]
        if block[0] >= steps / ERROR_BLOCKS or i == len(rows) - 1:
            squares += (block[1] / amount - block[2] / number) ** 2
            block = [0.0, 0.0, 0.0]
    return math.sqrt(squares)
