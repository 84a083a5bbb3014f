"""Schedule of the blocks: control, dosed, dosed, control, of one dose after another."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import ceil
from random import Random
from statistics import fmean
from time import perf_counter

from fastfeed.core.machine import cores
from fastfeed.diagnose.evidence import Intervention
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.interventions import doses
from fastfeed.diagnose.interventions.doses import Dose, DoseHelper, Wait
from fastfeed.diagnose.interventions.effects import T_OF_PAIRS, effect_of, pairs_of
from fastfeed.steps.timeline import DOSED, UNOBSERVED, Loop, Mark

MAX_LOST = 0.05  # share of the watched time that all blocks together may take from the loop
SHARE = 0.25  # of the time for which the lock is held, or workers are stopped
DELAYS = (0.25, 0.5, 1.0)  # of a period
BLOCK_STEPS, BLOCK_S = 4, 0.03  # at least: several slices of a dose
SETTLED_STEPS = 8  # after which nothing of a block, a burst or a pause still shows
MIN_ROUNDS, MAX_ROUNDS = min(T_OF_PAIRS) // 2, max(T_OF_PAIRS) // 2
UNSURE = 0.1  # an interval about no effect that is wider than twice this tells nothing
OVERDUE_STEPS = 8  # after which a burst that was due waits for what may never come
IDLE_S, BUSY_S = 0.1, 0.005  # between two looks at the loop: at most, and at least
SEEN_STEPS, SEEN_MARKS = 100, 500  # latest ones that tell what the loop does now
NOT_STEPS = ("evaluation", "checkpoint", "experiment", UNOBSERVED)  # marks of what no step does
NO_TIME = "neither time nor costs were left for it; a longer watch (--seconds) measures it"
FEWEST = 4  # periods of a dosed block; of fewer only a bound is known
CUT_SHORT = "its blocks were cut short, so that it may be more"
TOO_DEAR = "a block would have cost more than its part of 5 % of the time"


@dataclass
class DoseSeries:
    """The rounds of one dose; `why` there is no result."""

    dose: Dose
    rounds: int = 0  # also those that do not count
    pairs: list[float] = field(default_factory=list)
    cost_s: float = 0.0
    why: str = NO_TIME

    @property
    def is_known(self) -> bool:
        """True if there are enough rounds for an interval."""
        return len(self.pairs) >= 2 * MIN_ROUNDS

    def matters_after(self, before: DoseSeries) -> bool:
        """Return True if it is of use. A delay is where a shorter one left the period as it was."""
        both = before.dose.kind == self.dose.kind == "delay"
        known = before.result().interval if both else (0.0, 0.0)
        return known is not None and known[1] < before.dose.amount / 2

    def result(self) -> Intervention:
        """Return the effect, or why it was not measured."""
        dose, why = self.dose, self.why
        if self.is_known:
            effect, (low, high) = effect_of(self.pairs)
            unsure = low <= 0 <= high and high - low > 2 * UNSURE
            if dose.kind == "delay":  # it is one, or it is none
                unsure = low < dose.amount / 2 < high
            if not unsure:
                found = dose.kind, dose.amount, effect, (low, high)
                return Intervention(*found, self.cost_s, dose.remark)
            why = f"the steps vary too much ({low:+.0%} to {high:+.0%})"
        return Intervention(dose.kind, dose.amount, cost_s=self.cost_s, note=why)


def doses_for(log: HookLog, loop: Loop, *, helper: DoseHelper) -> list[Dose]:
    """Return the doses whose effect matters for this loop, the most useful first."""
    found = []
    if loop.waits in ("hidden", "modelled"):
        found += [doses.held_loop(log, loop, share=share) for share in DELAYS]
    found += [doses.busy_cores(helper, 1), doses.held_lock(SHARE)]
    if doses.worker_pids(loop):
        found.append(doses.stopped_workers(helper, loop, share=SHARE))
    more = sorted({cores() // 2, cores()} - {0, 1})
    return found + [doses.busy_cores(helper, count) for count in more]


class Interventions:
    """Gives doses to a loop in rounds, in random order, between the bursts of `log.experiments`.

    `run` is the work of a thread, which needs nothing of the loop's own.
    """

    def __init__(self, log: HookLog) -> None:
        self.helper = DoseHelper()
        self._log = log
        self._series: list[DoseSeries] = []
        self._loop = Loop("", "", 0)
        self._end_s = self._budget_s = 0.0
        self._random = Random(0)  # not the script's own generator

    def plan(self, start_s: float, end_s: float, *, loop: Loop) -> None:
        """Give doses to this loop in this time."""
        self._series = [
            DoseSeries(dose, MAX_ROUNDS * bool(dose.refusal), why=dose.refusal or NO_TIME)
            for dose in doses_for(self._log, loop, helper=self.helper)
        ]
        self._loop, self._end_s, self._budget_s = loop, end_s, MAX_LOST * (end_s - start_s)

    def results(self) -> tuple[Intervention, ...]:
        """Return what was found."""
        return tuple(one.result() for one in self._useful())

    @property
    def _settled_steps(self) -> int:
        """Number of steps after which a dose no longer shows: its batches are used up."""
        buffer = SETTLED_STEPS if self._loop.buffer is None else self._loop.buffer
        return max(2, min(buffer, SETTLED_STEPS))

    @property
    def _left_s(self) -> float:
        """Seconds that blocks may still cost."""
        return self._budget_s - sum(one.cost_s for one in self._series)

    @property
    def _group(self) -> int:
        """Number of batches that come together: workers that began together deliver together."""
        return max(1, min(self._loop.buffer or 0, 2 * SETTLED_STEPS) // 2)

    def _useful(self) -> list[DoseSeries]:
        every = list(self._series)
        later = (one for before, one in pairwise(every) if one.matters_after(before))
        return [*every[:1], *later]

    def run(self, wait: Wait) -> None:
        """Make rounds until `wait` returns False."""
        while wait(IDLE_S) and self._log.active:
            latest = self._loop.steps[-SEEN_STEPS:]
            if len(latest) > SETTLED_STEPS and self._is_calm(latest[-SETTLED_STEPS].begin_s):
                self._advance(wait, usual=self._periods(latest[0].begin_s, perf_counter()))

    def _advance(self, wait: Wait, *, usual: list[float]) -> None:
        """Make a round if there is room for one before the next burst, and before the end."""
        now_s, period_s = perf_counter(), max(1e-6, fmean(usual))
        count = self._group * ceil(max(BLOCK_STEPS, BLOCK_S / period_s) / self._group)
        round_s = (7 * count + 3 * self._settled_steps) * period_s  # if its dose makes it slow
        turns = [one for one in self._useful() if one.rounds < MAX_ROUNDS and self._left_s > 0]
        # If the time is not enough for all: those that were begun, and then the first ones.
        turns.sort(key=lambda one: one.is_known or not one.rounds)
        turns = turns[: max(1, int((self._end_s - now_s) / round_s / (MIN_ROUNDS + 1)))]
        if turns and self._log.due_s < now_s - OVERDUE_STEPS * period_s:
            self._log.schedule_burst(now_s + round_s)
        if turns and now_s + round_s <= min(self._log.due_s, self._end_s):
            one = min(turns, key=lambda one: (one.rounds, self._random.random()))
            self._round(one, count, usual=usual, wait=wait)

    def _round(self, one: DoseSeries, count: int, *, usual: list[float], wait: Wait) -> None:
        """Make a round of blocks of `count` steps."""
        one.rounds, one.why = one.rounds + 1, "the loop paused, or stood still, in its blocks"
        usually = partial(self._pass, wait=wait, period_s=fmean(usual), late_s=count * fmean(usual))
        start_s = perf_counter()
        on_s = dosed_s = off_s = usually(start_s, count + 1)
        first = self._periods(start_s, on_s)
        if len(first) < count or not self._is_calm(start_s):
            return
        period_s, hold = fmean(first), partial(one.dose.hold, wait)
        lead = self._settled_steps if one.dose.kind == "producers" else 0
        steps = lead + 2 * count
        missing = sum(s.rounds < MAX_ROUNDS and not s.is_known for s in self._series)
        late_s = min(self._left_s / (MIN_ROUNDS * missing or 2), steps * period_s)
        late_s += self._group * period_s
        dosed = partial(self._pass, wait=hold, period_s=period_s, late_s=late_s)
        try:
            with one.dose.give(late_s + (steps + 2) * period_s, period_s):
                dosed_s = dosed(on_s, lead)
                off_s = dosed(on_s, steps + 1)
        except Exception as error:  # of the loader, or without the helper
            one.rounds, one.why = MAX_ROUNDS, str(error)
        else:
            slow = self._periods(on_s, off_s)
            usually_s = period_s * (off_s - on_s) / max(fmean(slow), 1e-9) if slow else period_s
            one.cost_s += max(0.0, off_s - on_s - usually_s)
            one.why = one.why if len(slow) >= steps else TOO_DEAR
        clear_s = usually(off_s, self._settled_steps)
        self._log.add_mark(Mark("experiment", on_s, clear_s, DOSED))
        end_s = usually(clear_s, count + 1)
        if self._is_calm(start_s):
            slow = self._periods(dosed_s, off_s)
            if one.why == TOO_DEAR and len(slow) < FEWEST and self._group == 1 and not lead:
                # with the steps at both ends, which lie in it in part, they took at least as long
                slow = [(off_s - dosed_s) / (len(slow) + 2)] * FEWEST
                one.dose.remark = one.dose.remark or CUT_SHORT
            slow = slow[: len(slow) // (2 * self._group) * 2 * self._group]
            last = self._periods(clear_s, end_s)
            pairs = pairs_of((first[-count:], last[:count]), slow, usual=usual)
            one.pairs, one.why = one.pairs + pairs, NO_TIME if pairs else one.why

    def _pass(
        self, since_s: float, count: int, *, wait: Wait, period_s: float, late_s: float
    ) -> float:
        """Wait until so many steps have begun and ended since then, or are later than usual by so
        much; return the time."""
        steps = self._loop.steps
        while (done := len(steps) - bisect_left(steps, (since_s,))) < count:
            due_s = since_s + (done + 1) * period_s + late_s
            if perf_counter() > due_s or not wait(min(IDLE_S, max(BUSY_S, period_s / 2))):
                break
        return perf_counter()

    def _periods(self, since_s: float, until_s: float) -> list[float]:
        """Return the periods of the steps that begin, and whose next one begins, in this time."""
        later = self._loop.steps[bisect_left(self._loop.steps, (since_s,)) :]
        begins = (step.begin_s for step in later if step.begin_s <= until_s)
        return [end_s - begin_s for begin_s, end_s in pairwise(begins)]

    def _is_calm(self, since_s: float) -> bool:
        """Return True if nothing was going on since then but steps, and none of them was free."""
        later = self._loop.steps[bisect_left(self._loop.steps, (since_s,)) :]
        marks = [one for one in self._log.timeline.marks[-SEEN_MARKS:] if one.kind in NOT_STEPS]
        others = any(one.end_s >= since_s and one.label != DOSED for one in marks)
        return not others and not any(step.free for step in later)
