"""The phases of a diagnosis: warm-up, measurement, and the time of the report."""

from __future__ import annotations

from dataclasses import dataclass

from fastfeed.diagnose.hooks.context import Context
from fastfeed.steps.timeline import Loop

WARM_STEPS = 5
ENOUGH_STEPS = 20  # the fewest for a verdict
# times the requested seconds, if steps are so slow that there are too few
LONGEST = 3
STALLED_S = 12.0  # how long a report waits for a loop that stands still
USUAL = 10  # times the usual step without a step: the loop stands still
MORE = 1.5  # times as long: another loop becomes the main one
ALIVE_S = 5.0  # without a step, after which a loop is over if another one is not


@dataclass(frozen=True)
class WatchPlan:
    """The request. `seconds`: from the first step to the report, of which `warmup_s` are not
    measured; `experiments`: some steps may get their input ahead; `stop`: the script ends with the
    report; `dead_s`: the time without a step after which a feed that has died is reported as dead.
    """

    seconds: float = 20.0
    warmup_s: float = 2.0
    experiments: bool = True
    stop: bool = False
    dead_s: float = 8.0


WAITS, WARMS, MEASURES, REPORTS, OVER = "waits", "warms", "measures", "reports", "over"


class Life:
    """The present phase of a diagnosis. `look` is called repeatedly, and advances it."""

    def __init__(self, plan: WatchPlan, context: Context, *, begin_s: float, thread: int) -> None:
        self.phase = WAITS
        self.loop: Loop | None = None
        self.start_s = begin_s  # of the measurement
        self.end_s = begin_s + plan.seconds  # when the report is due
        self._plan = plan
        self._context = context
        self._begin_s = begin_s
        self._thread = thread
        self._latest_s = begin_s

    def look(self, now_s: float) -> str:
        """Return the present phase; MEASURES and REPORTS mean that it has just begun, and are
        returned once."""
        loop = self.main(now_s)
        if loop is not self.loop and loop is not None and self.phase != OVER:
            self.loop, self._context.main, self.phase = (
                loop,
                loop,
                WARMS,
            )  # another loop takes most of the time: the measurement was not of it
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
        """Return the loop that takes most of the time, of those under way; one of the script's own
        thread, if it takes a quarter of it."""
        loops = [
            loop for loop in list(self._context.timeline.loops.values()) if len(loop.steps) > 1
        ]
        loops = [loop for loop in loops if id(loop) not in self._context.nested] or loops
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
        """Seconds from the first step to the measurement."""
        return 0.0 if self.loop is None else max(0.0, self.start_s - self.loop.steps[0].begin_s)

    def over(self) -> None:
        """End: later events are ignored."""
        self.phase = OVER

    def _warm(self, loop: Loop, now_s: float) -> bool:
        return len(loop.steps) >= WARM_STEPS and now_s >= loop.steps[0].end_s + self._plan.warmup_s

    def _enough(self, now_s: float) -> bool:
        if self.loop is not None and now_s < self.end_s + STALLED_S:
            last = self.loop.steps[-1]
            if now_s - last.end_s > max(
                1.0, USUAL * (last.end_s - self.loop.steps[0].begin_s) / len(self.loop.steps)
            ):
                return False  # no step ends: whether that is for ever will be known soon
        steps = (
            []
            if self.loop is None
            else [step for step in self.loop.steps if not step.free][-ENOUGH_STEPS - 1 :]
        )
        return now_s >= self._latest_s or (
            len(steps) > ENOUGH_STEPS and steps[0].begin_s >= self.start_s
        )


def _weight(loop: Loop) -> float:
    """Return the weight of a loop: of two loops in one (a queue, and the session that it feeds) the
    one that knows its waits counts more."""
    return _seconds(loop) * (0.5 if loop.waits in ("none", "hidden") else 1.0)


def _seconds(loop: Loop) -> float:
    return loop.steps[-1].end_s - loop.steps[0].begin_s
