"""When the warm-up and the measured time of a diagnosis end, and when the report is due."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from types import FrameType

from fastfeed.core.user_code import is_users_code
from fastfeed.diagnose.diagnosis import MIN_STEPS
from fastfeed.diagnose.evidence import Intervention
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.errors import OptionError
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
MIN_WATCHED = 0.5  # share of the planned time from which advice needs no experiment


@dataclass(frozen=True)
class WatchPlan:
    """Options of a diagnosis.

    `seconds`: from the first step to the report, including `warmup_s`, which is not measured;
    without a step, from the end of the script's imports. The report is at most GRACE_S later.
    `experiments`: some steps may get their input ahead of time. `stop`: the script ends with the
    report. `dead_s`: least time without a step before a feed can be reported dead. `live`: the
    number of producers of a FeedRunner is searched for in the running job. Raise
    OptionError for a warm-up that is not shorter than all.
    """

    seconds: float = 20.0
    warmup_s: float = 2.0
    experiments: bool = True
    stop: bool = False
    dead_s: float = 8.0
    live: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_s < self.seconds:
            raise OptionError(
                f"the warm-up is a part of the {self.seconds:g} seconds and must be shorter: lower "
                f"warmup (--warmup), which is {self.warmup_s:g}, or raise seconds (--seconds)"
            )


class Due(Enum):
    """What is to be done now."""

    NOTHING = "nothing"
    MEASURE = "measure"  # from now on: the imports, or the warm-up, are over
    SEARCH = "search"  # for a loop in samples: the time is over without one
    UNSEEN = "unseen"  # the extra time, too: a report must be made
    REPORT = "report"


def is_importing(frame: FrameType | None) -> bool:
    """Return True if a library is imported, rather than the user's own module executed."""
    while frame is not None and not is_users_code(frame.f_code):
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


class Lifecycle:
    """Progress of a diagnosis: no loop is known, it warms up, it is measured, all is over.

    `update` is called again and again. `loop`: the main one; `start_s` and `end_s`: of the measured
    time, as far as they are known.
    """

    def __init__(self, plan: WatchPlan, log: HookLog, *, begin_s: float, thread: int) -> None:
        self.log = log
        self.loop: Loop | None = None
        self.begin_s = self.start_s = begin_s
        self.end_s = begin_s + plan.seconds
        self.over = False
        self._plan = plan
        self._thread = thread
        self._measuring = False  # the loop, or without one what the script does after its imports
        self._latest_s = self._retry_s = inf
        self._left: set[int] = set()  # ids of loops that train nothing

    def update(self, now_s: float, *, importing: bool = False) -> Due:
        """Return what is due, once; SEARCH comes once a second.

        `importing`: the script is importing a library.
        """
        if self.over:
            return Due.NOTHING
        loop = self.choose_loop(now_s)
        if loop is None:
            return self._update_without_loop(now_s, importing=importing)
        first_s = loop.steps[0].end_s
        if loop is not self.loop:
            # It takes most of the time: earlier measurements are not about it.
            self.loop = self.log.main = loop
            self._measuring = False
            self._latest_s = max(first_s + self._plan.seconds, now_s) + GRACE_S
        if now_s >= self._latest_s:
            return self._report()
        if not self._measuring and self._is_warm(now_s, loop):
            self._measuring = True
            self.start_s = now_s
            self.end_s = max(first_s + self._plan.seconds, now_s + self._plan.seconds / 2)
            self._latest_s = max(self._latest_s, self.end_s)
            return Due.MEASURE
        if self._measuring and now_s >= self.end_s and self._has_enough(now_s, loop):
            return self._report()
        return Due.NOTHING

    def _report(self) -> Due:
        self.over = True
        return Due.REPORT

    def _update_without_loop(self, now_s: float, *, importing: bool) -> Due:
        if not self._measuring:
            self.start_s = now_s if importing else self.start_s
            if now_s - self.start_s < IMPORTS_OVER_S:
                return Due.NOTHING
            self._measuring = True
            self._retry_s = self.start_s + self._plan.seconds
            self._latest_s = self._retry_s + GRACE_S - REPORT_S
            return Due.MEASURE
        if now_s >= self._latest_s:
            self._latest_s = inf
            return Due.UNSEEN
        if now_s >= self._retry_s:
            self._retry_s = now_s + RETRY_S
            return Due.SEARCH
        return Due.NOTHING

    def _is_warm(self, now_s: float, loop: Loop) -> bool:
        warm_s = now_s - loop.steps[0].end_s
        enough = len(loop.steps) >= WARMUP_STEPS or warm_s >= self._plan.seconds / 2
        return enough and warm_s >= self._plan.warmup_s

    def choose_loop(self, now_s: float) -> Loop | None:
        """Return the running loop that takes most of the time.

        One that trains comes before evaluations, and a loop of the script's main thread is
        preferred if it takes a quarter of that time.
        """
        loops = [one for one in list(self.log.timeline.loops.values()) if len(one.steps) > 1]
        loops = [one for one in loops if id(one) not in self._left]
        loops = [one for one in loops if id(one) not in self.log.nested] or loops
        loops = [one for one in loops if one.trains] or loops
        own = self.loop
        running = [one for one in loops if _idle_s(one, now_s) < LOOP_TIMEOUT_S]
        # an idle main loop gives way to another one only after some seconds of that
        if own in loops and own not in running:
            later = max(map(_duration_s, running), default=0.0) > LOOP_TIMEOUT_S
            running += [] if later or own is None else [own]
        alive = running or loops
        least_s = max(map(_duration_s, alive), default=0.0) / 4
        best = [
            one for one in alive if one.thread == self._thread and _duration_s(one) > least_s
        ] or alive
        found = max(best, key=_weight, default=None)
        keep = own in best and own and found and _weight(found) < SWITCH_RATIO * _weight(own)
        return own if keep else found

    def restart(self, now_s: float, *, without: Loop | None = None) -> None:
        """Begin now, as if this main loop, which trains nothing, had not been seen."""
        if without is not None:
            self._left.add(id(without))
            self.loop = self.log.main = None
        self.start_s, self._measuring = now_s, False
        self._latest_s = self._retry_s = inf

    def finish(self) -> None:
        """Stop observing."""
        self.over = True

    @property
    def seen_loop(self) -> Loop | None:
        """The main loop, or one that has had a single step."""
        loops = [one for one in list(self.log.timeline.loops.values()) if one.steps]
        return self.loop or max(loops, key=_duration_s, default=None)

    @property
    def warmup_s(self) -> float:
        """Seconds from the first step to the measured time."""
        return 0.0 if self.loop is None else max(0.0, self.start_s - self.loop.steps[0].begin_s)

    def short(self, now_s: float, tried: Sequence[Intervention]) -> str:
        """Return why an end at this time was too early for advice; empty if it was not."""
        if self.loop is None:
            return ""
        planned_s, seen_s = self.end_s - self.start_s, now_s - self.start_s
        measured = any(one.effect is not None for one in tried)
        measured = measured or any(step.free for step in self.loop.steps)
        if measured or (self._measuring and seen_s >= MIN_WATCHED * planned_s):
            return ""
        return (
            f"the watch ended {now_s - self.loop.steps[0].begin_s:.1f} s after the first step, "
            "without a result of any experiment, and was to last "
            f"{self._plan.seconds:g} s; let it run longer, or give it fewer seconds"
        )

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
