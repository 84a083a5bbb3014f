"""A job on a clock of its own: a loop whose steps take longer while it is dosed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat

from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.interventions.doses import Dose
from fastfeed.steps.timeline import Mark, Step, Timeline


class Job:
    """A loop of steps; `wait` lets the time pass, and is False from `over_s` on.

    `steps_s`: the durations of its steps without a dose. `pauses`: checkpoints by their begin, in
    seconds.
    """

    def __init__(
        self,
        steps_s: float | Iterator[float],
        *,
        over_s: float = 18.0,
        pauses: dict[float, float] | None = None,
        buffer: int | None = None,
    ) -> None:
        self.log = HookLog(Timeline())
        self.loop = self.log.timeline.loop("train", name="train", kind="watch", thread=1)
        self.loop.buffer = buffer
        self.now = self.lost_s = self._begin_s = 0.0
        self.over_s = over_s
        self.given: list[tuple[str, float, float]] = []  # kind, begin and end of each dose
        self._steps_s = repeat(steps_s) if isinstance(steps_s, float) else steps_s
        self._left_s = next(self._steps_s)  # of the step that runs, without a dose
        self._pauses = sorted((pauses or {}).items())
        self._slower = 0.0  # while a dose is given

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        until_s = self.now + seconds
        while self._pauses and self._pauses[0][0] <= self.now:
            length_s = self._pauses.pop(0)[1]
            self.log.add_mark(Mark("checkpoint", self.now, self.now + length_s))
            self._left_s += length_s / (1 + self._slower)
        while self.now + self._left_s * (1 + self._slower) <= until_s:
            self._pass(self._left_s * (1 + self._slower))
            self.loop.add(Step(self._begin_s, self.now, 0.0))
            self._begin_s, self._left_s = self.now, next(self._steps_s)
        self._pass(until_s - self.now)
        return self.now < self.over_s

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        self._left_s -= seconds / (1 + self._slower)
        self.lost_s += seconds * self._slower / (1 + self._slower)

    def dose(
        self,
        kind: str,
        amount: float,
        slower: float | Callable[[float], float],
        refusal: str = "",
    ) -> Dose:
        """A dose that makes steps longer by `slower`, a share."""

        @contextmanager
        def give(limit_s: float, period_s: float) -> Iterator[None]:
            assert self._slower == 0.0, "one dose at a time"
            assert limit_s > 0 and period_s > 0
            begin_s = self.now
            self._slower = slower(period_s) if callable(slower) else slower
            try:
                yield
            finally:
                self._slower = 0.0
                self.given.append((kind, begin_s, self.now))

        return Dose(kind, amount, give, refusal)
