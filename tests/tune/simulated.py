"""A training in virtual time, as a tuner sees it: producers, batches in order, and steps."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from functools import partial

from fastfeed.core.stats import Snapshot, StageRow
from fastfeed.tune.count_tuner import CountTuner

POLL_S, QUIET_POLL_S = 0.1, 0.5
Curve = Callable[[int], float]


class SimulatedTraining:
    """A training whose `count` producers make `rate(count)` batches/s, and whose step takes
    `step_s`.

    A batch takes `slow_s` seconds more with a probability of `slow`, or `noise` (of a logarithm)
    more or less. Each producer beyond two takes `taken` of the step's time from it. Between two
    steps, the training pauses until `paused_until_s`.
    """

    def __init__(
        self,
        rate: Curve,
        *,
        step_s: float,
        count: int = 1,
        most: int = 64,
        seed: int = 0,
    ) -> None:
        self.rate, self.step_s, self.count, self.most = rate, step_s, count, most
        self.slow, self.slow_s, self.noise, self.taken = 0.0, 0.0, 0.0, 0.0
        self.allowed = "the test"
        self.now_s = self.paused_until_s = 0.0
        self.changes: list[tuple[float, int]] = []
        self._rng = random.Random(seed)
        self.tuner = CountTuner("threads", count, limits=lambda *_: (self.most, self.allowed))
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._steps = 0
        self.begin_feed()
        self._at(POLL_S, self._look)

    def begin_feed(self) -> None:
        """Begin another feed, as where a loop was left early: its counters begin at 0."""
        self._events = [one for one in self._events if one[2] == self._look]
        heapq.heapify(self._events)
        self._taken = self._made = self._next = self._working = 0
        self._ready: set[int] = set()
        self._waiting: dict[int, float] = {}  # batches that are made and have no room, since when
        self._room_s = 0.0
        self._busy_s = self._wait_s = self._last_s = 0.0
        self._first_s = -1.0
        self._asked_s: float | None = None
        self.tuner.begin_feed()
        self._staff()
        self._at(0.0, self._ask)

    @property
    def history(self) -> list[str]:
        """What was decided."""
        return list(map(str, self.tuner.history))

    @property
    def held_up(self) -> str:
        """What the tuner says of late batches."""
        return self.tuner.held_up

    @property
    def best(self) -> float:
        """The steps/s of the best number."""
        return min(1 / self.step_s, max(self.rate(n) for n in range(1, self.most + 1)))

    def run(self, seconds: float) -> float:
        """Go on for so long; return the steps/s of it."""
        until_s, steps = self.now_s + seconds, self._steps
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, act = heapq.heappop(self._events)
            act()
        self.now_s = until_s
        return (self._steps - steps) / seconds

    def _at(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + seconds, next(self._numbers), act))

    def _staff(self) -> None:
        """Let every producer work that has room."""
        while self._working + len(self._waiting) < self.count:
            self._working += 1
            ticket, self._next = self._next, self._next + 1
            seconds = self.count / self.rate(self.count)
            if self.noise:
                seconds *= self._rng.lognormvariate(0, self.noise)
            if self.slow and self._rng.random() < self.slow:
                seconds += self.slow_s
            self._at(seconds, partial(self._put, ticket, seconds))

    def _put(self, ticket: int, seconds: float) -> None:
        self._working -= 1
        self._busy_s += seconds
        self._waiting[ticket] = self.now_s
        self._shift()

    def _shift(self) -> None:
        """Move what is made to where there is room, and to the step that waits for it."""
        while True:
            room = max(16, 4 * self.count) - len(self._ready)
            moved = [one for one in sorted(self._waiting) if room > 0 or one == self._taken][:1]
            for one in moved:
                self._room_s += self.now_s - self._waiting.pop(one)
                self._ready.add(one)
                self._made += 1
            if self._asked_s is not None and self._taken in self._ready:
                self._take()
            elif not moved:
                break
        self._staff()

    def _ask(self) -> None:
        if self.now_s < self.paused_until_s:
            self._at(self.paused_until_s - self.now_s, self._ask)
            return
        self._asked_s = self.now_s
        self._shift()

    def _take(self) -> None:
        assert self._asked_s is not None
        if self._first_s < 0:
            self._first_s = self.now_s
        else:
            self._wait_s += self.now_s - self._asked_s
        self._asked_s = None
        self._ready.discard(self._taken)
        self._taken += 1
        self._steps += 1
        self._last_s = self.now_s
        self._at(self.step_s * (1 + self.taken * max(0, self.count - 2)), self._ask)

    def _look(self) -> None:
        wanted = self.tuner.look(self._snapshot(), self.now_s)
        if wanted != self.count:
            self.count = wanted
            self.changes.append((self.now_s, wanted))
            self._shift()
        self._at(POLL_S if self.tuner.searches else QUIET_POLL_S, self._look)

    def _snapshot(self) -> Snapshot:
        seen = self._first_s >= 0
        consumed = StageRow(batches=max(0, self._taken - 1), wait_in_s=self._wait_s)
        made = StageRow(batches=self._made, read_s=self._busy_s, wait_out_s=self._room_s)
        return Snapshot(
            self.now_s - self._first_s if seen else 0.0,
            made,
            consumed,
            len(self._ready),
            0,
            (made,),
            taken_s=self._last_s - self._first_s if seen else 0.0,
        )
