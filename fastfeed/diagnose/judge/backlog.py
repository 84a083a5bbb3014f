"""Effects of an experiment on later steps, which do not count.

They use batches that were made meanwhile, and wait less than others. Memory is laid out
differently, which can make all later steps faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastfeed.steps.timeline import Mark, Step

Floats = np.ndarray[Any, np.dtype[np.float64]]
# Probability of that many usual steps in a row without a wait. Above it they cannot be
# distinguished from a backlog.
MAX_CHANCE = 0.05
PACE_STEPS = 20  # steps on either side of an experiment that show whether it changed their pace
CHANGED_PACE = 1.3  # ratio of two paces that differ
SAME_PACE = 1.15  # ratio of two paces that are the same
MAX_BACKLOG_STEPS = 100  # steps that the backlog of one experiment may last


def backlog_steps(steps: Sequence[Step], marks: Sequence[Mark]) -> set[int]:
    """Return the indices of the steps that used batches made during an experiment.

    After each experiment these are the steps before the point that best separates steps without a
    wait from steps with the usual wait: the largest cumulative sum of half the usual wait minus
    their own (Page, 1954).
    """
    experiments = [mark for mark in marks if mark.kind == "experiment"]
    if not experiments or not steps:
        return set()
    begin, waits = np.array([s.begin_s for s in steps]), np.array([s.wait_s for s in steps])
    free = np.array([s.free for s in steps])
    windows = [_window(mark.end_s, begin, free=free) for mark in experiments]
    usual = ~free
    for window in windows:
        usual[window] = False
    if not usual.any():
        return set()
    half = float(waits[usual].mean()) / 2
    waitless = float((waits[usual] <= half).mean())  # share of usual steps without a wait
    counts = ((window, _change_point(half - waits[window])) for window in windows)
    return {i for window, count in counts if waitless**count <= MAX_CHANCE for i in window[:count]}


def before_pace_change(
    indices: Sequence[int], steps: Sequence[Step], *, marks: Sequence[Mark]
) -> list[int]:
    """Drop the steps after an experiment that permanently changed the pace.

    A few batches that an experiment holds at the same time are enough for malloc to keep memory
    that it returned, and touched again, for each step before.
    """
    period = np.array([steps[i + 1].begin_s - steps[i].begin_s for i in indices])
    begin = np.array([steps[i].begin_s for i in indices])
    for start_s in sorted(mark.start_s for mark in marks if mark.kind == "experiment"):
        first_after = int(np.searchsorted(begin, start_s))
        before, after = period[:first_after], period[first_after:]
        if min(len(before), len(after)) < PACE_STEPS:
            continue
        last_s = float(np.median(before[-PACE_STEPS:]))
        first_s = float(np.median(after[:PACE_STEPS]))
        drift = max(
            _ratio(last_s, float(np.median(before))), _ratio(first_s, float(np.median(after)))
        )
        if drift <= SAME_PACE and _ratio(last_s, first_s) > CHANGED_PACE:
            return list(indices[:first_after])
    return list(indices)


def _ratio(one: float, other: float) -> float:
    return max(one, other) / max(1e-9, min(one, other))


def _window(end_s: float, begin: Floats, *, free: Any) -> list[int]:
    """Return the steps after the experiment that ended at `end_s`, up to the next experiment."""
    start = int(np.searchsorted(begin, end_s))
    while start < len(free) and free[start]:
        start += 1
    stop = start
    while stop < min(len(free), start + MAX_BACKLOG_STEPS) and not free[stop]:
        stop += 1
    return list(range(start, stop))


def _change_point(saved: Floats) -> int:
    """Return the number of steps with the largest sum; 0 if no sum is above 0."""
    if not len(saved):
        return 0
    sums = np.cumsum(saved)
    last = int(np.argmax(sums))
    return last + 1 if sums[last] > 0 else 0
