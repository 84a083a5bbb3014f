"""Phases of a diagnosis: when the warm-up and the measured time end, and when the report is due."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fastfeed.diagnose.diagnosis import MIN_STEPS
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.steps.timeline import Loop

WARMUP_STEPS = 5
MAX_EXTENSION = 3  # multiple of the planned time in which a report waits for slow steps
STALL_WAIT_S = 12.0  # most that a report waits for a loop that stands still
STALL_PERIODS = 10  # without a step: the loop stands still
SWITCH_RATIO = 1.5  # of durations: from it on another loop replaces the main one
LOOP_TIMEOUT_S = 5.0  # without a step: the loop is over if another one is not


@dataclass(frozen=True)
class WatchPlan:
    """Options of a diagnosis.

    `seconds`: from the first step to the report, including `warmup_s`, which is not measured.
    `experiments`: some steps may get their input ahead of time. `stop`: the script ends with the
    report. `dead_s`: least time without a step before a feed can be reported dead.
    """

    seconds: float = 20.0
    warmup_s: float = 2.0
    experiments: bool = True
    stop: bool = False
    dead_s: float = 8.0


class Phase(Enum):
    """Phase of a diagnosis."""

    WAITING = "waiting"
    WARMING_UP = "warming up"
    MEASURING = "measuring"
    REPORTING = "reporting"
    OVER = "over"


class Lifecycle:
    """Current phase of a diagnosis. `update` is called again and again, and advances it."""

    def __init__(self, plan: WatchPlan, log: HookLog, *, begin_s: float, thread: int) -> None:
        self.phase = Phase.WAITING
        self.loop: Loop | None = None
        self.start_s = begin_s  # of the measured time
        self.end_s = begin_s + plan.seconds  # when the report is due
        self._plan = plan
        self._log = log
        self._thread = thread
        self._latest_s = begin_s

    def update(self, now_s: float) -> Phase:
        """Return the new phase.

        MEASURING and REPORTING are returned once, when they begin; a phase that continues to
        measure is returned as WAITING.
        """
        loop = self.choose_loop(now_s)
        if loop is not self.loop and loop is not None and self.phase != Phase.OVER:
            # Another loop takes most of the time: earlier measurements are not about it.
            self.loop = self._log.main = loop
            self.phase = Phase.WARMING_UP
        steps = self.loop.steps if self.loop else []
        if self.phase == Phase.WARMING_UP and len(steps) >= WARMUP_STEPS:
            first_s = steps[0].end_s
            if now_s < first_s + self._plan.warmup_s:
                return self.phase
            self.phase = Phase.MEASURING
            self.start_s = now_s
            self.end_s = max(first_s + self._plan.seconds, now_s + self._plan.seconds / 2)
            self._latest_s = first_s + MAX_EXTENSION * self._plan.seconds
            return Phase.MEASURING
        if self.phase == Phase.MEASURING and now_s >= self.end_s and self._has_enough(now_s):
            self.phase = Phase.OVER
            return Phase.REPORTING
        return Phase.WAITING if self.phase == Phase.MEASURING else self.phase

    def choose_loop(self, now_s: float) -> Loop | None:
        """Return the running loop that takes most of the time.

        A loop of the script's main thread is preferred if it takes a quarter of that time.
        """
        loops = [one for one in list(self._log.timeline.loops.values()) if len(one.steps) > 1]
        loops = [loop for loop in loops if id(loop) not in self._log.nested] or loops
        own = self.loop
        alive = [
            one for one in loops if one is own or _idle_s(one, now_s) < LOOP_TIMEOUT_S
        ] or loops
        if own in alive and len(alive) > 1 and own and _idle_s(own, now_s) > LOOP_TIMEOUT_S:
            others = [loop for loop in alive if loop is not own]
            alive = others if max(map(_duration_s, others)) > LOOP_TIMEOUT_S else alive
        least_s = max(map(_duration_s, alive), default=0.0) / 4
        best = [
            loop for loop in alive if loop.thread == self._thread and _duration_s(loop) > least_s
        ] or alive
        found = max(best, key=_weight, default=None)
        keep = own in best and own and found and _weight(found) < SWITCH_RATIO * _weight(own)
        return own if keep else found

    @property
    def warmup_s(self) -> float:
        """Seconds from the first step to the measured time."""
        return 0.0 if self.loop is None else max(0.0, self.start_s - self.loop.steps[0].begin_s)

    def finish(self) -> None:
        """Stop observing."""
        self.phase = Phase.OVER

    def _has_enough(self, now_s: float) -> bool:
        if self.loop is None:
            return now_s >= self._latest_s
        if now_s < self.end_s + STALL_WAIT_S:
            period_s = _duration_s(self.loop) / len(self.loop.steps)
            if _idle_s(self.loop, now_s) > max(1.0, STALL_PERIODS * period_s):
                return False  # it will soon be known whether the stall is permanent
        steps = [step for step in self.loop.steps if not step.free][-MIN_STEPS - 1 :]
        measured = len(steps) > MIN_STEPS and steps[0].begin_s >= self.start_s
        return measured or now_s >= self._latest_s


def _weight(loop: Loop) -> float:
    """Return the duration of a loop, halved if its waits are unknown.

    Of two nested loops (of a queue, and of the session that it feeds) the one with known waits is
    more informative.
    """
    return _duration_s(loop) * (0.5 if loop.waits in ("none", "hidden") else 1.0)


def _duration_s(loop: Loop) -> float:
    return loop.steps[-1].end_s - loop.steps[0].begin_s


def _idle_s(loop: Loop, now_s: float) -> float:
    return now_s - loop.steps[-1].end_s
