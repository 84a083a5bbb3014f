"""Phases of a diagnosis: when the warm-up and the measured time end, and when the report is due."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import FrameType

from fastfeed.core.user_code import is_users_code
from fastfeed.diagnose.diagnosis import MIN_STEPS
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.steps.timeline import Loop

WARMUP_STEPS = 5  # or half of the planned time, if steps are slower
# Most that a report is later than planned: it waits for a loop, or for enough slow steps.
GRACE_S = 30.0
REPORT_S = 5.0  # of these, to judge and to write
IMPORTS_OVER_S = 1.0  # without an import: the script works
RETRY_S = 1.0  # between two searches for a loop when the time is over
STALL_WAIT_S = 12.0  # most that a report waits for a loop that stands still
STALL_PERIODS = 10  # without a step: the loop stands still
SWITCH_RATIO = 1.5  # of durations: from it on another loop replaces the main one
LOOP_TIMEOUT_S = 5.0  # without a step: the loop is over if another one is not


@dataclass(frozen=True)
class WatchPlan:
    """Options of a diagnosis.

    `seconds`: from the first step to the report, including `warmup_s`, which is not measured;
    without a step, from the end of the script's imports. The report is at most GRACE_S later.
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
    WORKING = "working"  # the imports are over; no loop is known yet
    SEARCHING = "searching"  # the time is over without a loop
    UNSEEN = "unseen"  # the extra time, too
    WARMING_UP = "warming up"
    MEASURING = "measuring"
    REPORTING = "reporting"
    OVER = "over"


class WorkStart:
    """Start of a script's work, after its imports."""

    def __init__(self) -> None:
        self.work_s: float | None = None
        self._since_s: float | None = None  # without an import

    def update(self, now_s: float, *, importing: bool) -> bool:
        """Return True once, when the imports have been over for IMPORTS_OVER_S."""
        if self.work_s is not None:
            return False
        since_s = self._since_s if self._since_s is not None else now_s
        self._since_s = None if importing else since_s
        if not importing and now_s - since_s >= IMPORTS_OVER_S:
            self.work_s = since_s
        return self.work_s is not None


def is_importing(frame: FrameType | None) -> bool:
    """Return True if a library is imported, rather than the user's own module executed."""
    while frame is not None and not is_users_code(frame.f_code):
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


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
        self._work = WorkStart()
        self._latest_s = self._retry_s = float("inf")
        self._left: set[int] = set()  # ids of loops that train nothing

    def update(self, now_s: float, *, importing: bool = False) -> Phase:
        """Return the new phase.

        WORKING, MEASURING, UNSEEN and REPORTING are returned once, when they begin, and SEARCHING
        once a second; a phase that continues to measure is returned as WAITING. `importing`: the
        script is importing a library.
        """
        loop = self.choose_loop(now_s)
        if loop is not self.loop and loop is not None and self.phase != Phase.OVER:
            # Another loop takes most of the time: earlier measurements are not about it.
            self.loop = self._log.main = loop
            self.phase = Phase.WARMING_UP
            planned_s = max(loop.steps[0].end_s + self._plan.seconds, now_s)
            self._latest_s = planned_s + GRACE_S
        if self.loop is None:
            return self._update_without_loop(now_s, importing=importing)
        warming_up, measuring = self.phase == Phase.WARMING_UP, self.phase == Phase.MEASURING
        if now_s >= self._latest_s and (warming_up or measuring):
            self.phase = Phase.OVER
            return Phase.REPORTING
        if warming_up and self._is_warm(now_s, self.loop):
            self.phase = Phase.MEASURING
            self.start_s = now_s
            planned_s = self.loop.steps[0].end_s + self._plan.seconds
            self.end_s = max(planned_s, now_s + self._plan.seconds / 2)
            self._latest_s = max(self._latest_s, self.end_s)
            return Phase.MEASURING
        if measuring and now_s >= self.end_s and self._has_enough(now_s, self.loop):
            self.phase = Phase.OVER
            return Phase.REPORTING
        return Phase.WAITING if measuring else self.phase

    def _update_without_loop(self, now_s: float, *, importing: bool) -> Phase:
        if self.phase == Phase.OVER:
            return self.phase
        if self._work.update(now_s, importing=importing):
            self.start_s = self._work.work_s or now_s
            self._retry_s = self.start_s + self._plan.seconds
            self._latest_s = self._retry_s + GRACE_S - REPORT_S
            return Phase.WORKING
        if now_s >= self._latest_s:
            self._latest_s = float("inf")
            self.phase = Phase.OVER if self._plan.stop else Phase.WAITING
            return Phase.UNSEEN
        if now_s >= self._retry_s:
            self._retry_s = now_s + RETRY_S
            return Phase.SEARCHING
        return self.phase

    def _is_warm(self, now_s: float, loop: Loop) -> bool:
        warm_s = now_s - loop.steps[0].end_s
        enough = len(loop.steps) >= WARMUP_STEPS or warm_s >= self._plan.seconds / 2
        return enough and warm_s >= self._plan.warmup_s

    def choose_loop(self, now_s: float) -> Loop | None:
        """Return the running loop that takes most of the time.

        One that trains comes before evaluations, and a loop of the script's main thread is
        preferred if it takes a quarter of that time.
        """
        loops = [one for one in list(self._log.timeline.loops.values()) if len(one.steps) > 1]
        loops = [one for one in loops if id(one) not in self._left]
        loops = [loop for loop in loops if id(loop) not in self._log.nested] or loops
        loops = [loop for loop in loops if loop.trains] or loops
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

    def leave(self, loop: Loop | None) -> None:
        """Go on without this main loop, as if it had not been seen."""
        if loop is not None:
            self._left.add(id(loop))
            self.loop = self._log.main = None
            self.phase = Phase.WAITING
            self._latest_s = float("inf")

    @property
    def seen_loop(self) -> Loop | None:
        """The main loop, or one that has had a single step."""
        loops = [one for one in list(self._log.timeline.loops.values()) if one.steps]
        return self.loop or max(loops, key=_duration_s, default=None)

    @property
    def warmup_s(self) -> float:
        """Seconds from the first step to the measured time."""
        return 0.0 if self.loop is None else max(0.0, self.start_s - self.loop.steps[0].begin_s)

    def finish(self) -> None:
        """Stop observing."""
        self.phase = Phase.OVER

    def _has_enough(self, now_s: float, loop: Loop) -> bool:
        """Return True if there are enough steps, or the rest of the time is too short for them."""
        period_s = _duration_s(loop) / len(loop.steps) or 1e-9
        stands_still = _idle_s(loop, now_s) > max(1.0, STALL_PERIODS * period_s)
        if stands_still and now_s < self.end_s + STALL_WAIT_S:
            return False  # it will soon be known whether the stall is permanent
        steps = [step for step in loop.steps if not step.free][-MIN_STEPS - 1 :]
        measured = sum(step.begin_s >= self.start_s for step in steps)
        return measured + max(0.0, self._latest_s - now_s) / period_s <= MIN_STEPS or (
            measured > MIN_STEPS
        )


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
