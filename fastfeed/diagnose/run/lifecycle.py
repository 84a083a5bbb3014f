"""The life of a diagnosis in time: warm-up, the time that is measured, and when the report is
due."""

from __future__ import annotations

from dataclasses import dataclass

from fastfeed.diagnose.hooks.context import Context
from fastfeed.steps.timeline import Loop

WARM_STEPS = 5
ENOUGH_STEPS = 20  # with fewer there is no verdict
# times the seconds that were asked for, where steps are so slow that there are not enough
LONGEST = 3
STALLED_S = 12.0  # what a report waits for a loop that stands still
USUAL = 10  # times the usual step, without one, is standing still
MORE = 1.5  # times as long, and another loop is the main one
ALIVE_S = 5.0  # a loop that has made no step for so long is over, if another one is not


@dataclass(frozen=True)
class WatchPlan:
    """What was asked for. `seconds`: from the first step to the report, of which `warmup_s` are not
    measured; `experiments`: whether some steps may be given their input ahead; `stop`: whether the
    script ends with the report; `dead_s`: for how long no step may end before a feed that has died
    is said to be dead."""

    seconds: float = 20.0
    warmup_s: float = 2.0
    experiments: bool = True
    stop: bool = False
    dead_s: float = 8.0


WAITS, WARMS, MEASURES, REPORTS, OVER = "waits", "warms", "measures", "reports", "over"


class Life:
    """Where a diagnosis is. `look` is called again and again, and moves it on."""

    def __init__(self, plan: WatchPlan, context: Context, *, begin_s: float, thread: int) -> None:
        self.phase = WAITS
        self.loop: Loop | None = None
        self.start_s = begin_s  # of what is measured
        self.end_s = begin_s + plan.seconds  # when the report is due
        self._plan = plan
        self._context = context
        self._begin_s = begin_s
        self._thread = thread
        self._latest_s = begin_s

    def look(self, now_s: float) -> str:
        """The phase after this look; MEASURES and REPORTS mean that it has just begun, and are told
        once."""
        loop = self.main(now_s)
        if loop is not self.loop and loop is not None and self.phase != OVER:
            self.loop, self._context.main, self.phase = (
                loop,
                loop,
                WARMS,
            )  # another loop takes most of the time: what was measured is not of it
        if self.phase == WARMS and self.loop is not None and self._warm(self.loop, now_s):
            self.phase = MEASURES
            first_s = self.loop.steps[0].end_s
            self.start_s = now_s
            self.end_s = max(first_s + self._plan.seconds, now_s + self._plan.seconds / 2)
            self._latest_s = first_s + LONGEST * self._plan.seconds
            return MEASURES
        if self.phase == MEASURES and now_s >= self.end_s and self._enough(now_s):
            self.phase = OVER
            return REPORTS
        return WAITS if self.phase == MEASURES else self.phase

    def main(self, now_s: float) -> Loop | None:
        """The loop that takes most of the time, of those that go on; one of the script's own
        thread, if it takes a quarter of it."""
        loops = [
            loop for loop in list(self._context.timeline.loops.values()) if len(loop.steps) > 1
        ]
        loops = [loop for loop in loops if id(loop) not in self._context.inner] or loops
        alive = [
            loop for loop in loops if loop is self.loop or now_s - loop.steps[-1].end_s < ALIVE_S
        ] or loops
        own = self.loop
        if (
            own in alive
            and len(alive) > 1
            and own is not None
            and now_s - own.steps[-1].end_s > ALIVE_S
        ):
            others = [loop for loop in alive if loop is not own]
            alive = others if max(map(_seconds, others)) > ALIVE_S else alive
        most = max(map(_seconds, alive), default=0.0)
        best = [
            loop for loop in alive if loop.thread == self._thread and _seconds(loop) > most / 4
        ] or alive
        found = max(best, key=_weight, default=None)
        keep = (
            own in best
            and own is not None
            and found is not None
            and _weight(found) < MORE * _weight(own)
        )
        return own if keep else found

    @property
    def warmup_s(self) -> float:
        """From the first step to the time that is measured."""
        return 0.0 if self.loop is None else max(0.0, self.start_s - self.loop.steps[0].begin_s)

    def over(self) -> None:
        """Whatever comes is not looked at."""
        self.phase = OVER

    def _warm(self, loop: Loop, now_s: float) -> bool:
        return len(loop.steps) >= WARM_STEPS and now_s >= loop.steps[0].end_s + self._plan.warmup_s

    def _enough(self, now_s: float) -> bool:
        if self.loop is not None and now_s < self.end_s + STALLED_S:
            last = self.loop.steps[-1]
            if now_s - last.end_s > max(
                1.0, USUAL * (last.end_s - self.loop.steps[0].begin_s) / len(self.loop.steps)
            ):
                return False  # nothing comes: it will be known soon whether that is for ever
        steps = (
            []
            if self.loop is None
            else [step for step in self.loop.steps if not step.free][-ENOUGH_STEPS - 1 :]
        )
        return now_s >= self._latest_s or (
            len(steps) > ENOUGH_STEPS and steps[0].begin_s >= self.start_s
        )


def _weight(loop: Loop) -> float:
    """Of two loops in one (of a queue, and of the session that it feeds) the one that knows its
    waits tells more."""
    return _seconds(loop) * (0.5 if loop.waits in ("none", "hidden") else 1.0)


def _seconds(loop: Loop) -> float:
    return loop.steps[-1].end_s - loop.steps[0].begin_s
