"""Effects of an experiment on later steps: they use batches that were made meanwhile, and wait less
than others; and memory is laid out differently, which can make all later steps faster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastfeed.steps.timeline import Mark, Step

Floats = np.ndarray[Any, np.dtype[np.float64]]
ENOUGH = 4  # steps
# of as many usual steps in a row without a wait: above it they cannot be distinguished from a
# backlog
CHANCE = 0.05
NEAR = 20  # steps on either side of an experiment that show if it changed their pace
CHANGED, SAME = 1.3, 1.15  # factors of the pace
MOST = 100  # steps that one experiment's backlog may last


def on_backlog(steps: Sequence[Step], marks: Sequence[Mark]) -> set[int]:
    """Return the steps on a backlog: after each experiment, those before the point that best
    separates steps without a wait from steps with the usual one (the largest cumulative sum of half
    the usual wait less their own: Page, 1954)."""
    ours = [mark for mark in marks if mark.kind == "experiment"]
    if not ours or not steps:
        return set()
    begin, waits = np.array([s.begin_s for s in steps]), np.array([s.wait_s for s in steps])
    free = np.array([s.free for s in steps])
    behind = [_behind(mark.end_s, begin, free=free) for mark in ours]
    usual = ~free
    for window in behind:
        usual[window] = False
    if not usual.any():
        return set()
    half = float(waits[usual].mean()) / 2
    # usual steps that do not wait either
    seldom = float((waits[usual] <= half).mean())
    lasts = ((window, _lasts(half - waits[window])) for window in behind)
    return {i for window, count in lasts if seldom**count <= CHANCE for i in window[:count]}


def handing_over_s(steps: Sequence[Step], marks: Sequence[Mark]) -> float:
    """Return the seconds that taking a ready batch costs, from those steps; 0.0 if they are too
    few. Between processes it is considerable: torch passes each tensor by a descriptor, with a
    handshake."""
    waits = [steps[i].wait_s for i in on_backlog(steps, marks)]
    return float(np.median(waits)) if len(waits) >= ENOUGH else 0.0


def unchanged(found: Sequence[int], steps: Sequence[Step], *, marks: Sequence[Mark]) -> list[int]:
    """Drop the steps after an experiment that permanently changed the pace: a few batches that were
    held at the same time are enough for malloc to keep memory that it had returned and touched
    again for each step. Without the diagnosis they would not be."""
    period = np.array([steps[i + 1].begin_s - steps[i].begin_s for i in found])
    begin = np.array([steps[i].begin_s for i in found])
    for start_s in sorted(mark.start_s for mark in marks if mark.kind == "experiment"):
        here = int(np.searchsorted(begin, start_s))
        before, after = period[:here], period[here:]
        if min(len(before), len(after)) < NEAR:
            continue
        last, first = float(np.median(before[-NEAR:])), float(np.median(after[:NEAR]))
        before_s, after_s = float(np.median(before)), float(np.median(after))
        if (
            max(_ratio(last, before_s), _ratio(first, after_s)) <= SAME
            and _ratio(last, first) > CHANGED
        ):
            return list(found[:here])
    return list(found)


def _ratio(one: float, other: float) -> float:
    return max(one, other) / max(1e-9, min(one, other))


def _behind(end_s: float, begin: Floats, *, free: Any) -> list[int]:
    """Return the steps after those of the experiment that ended then, up to the next one's."""
    at = int(np.searchsorted(begin, end_s))
    while at < len(free) and free[at]:
        at += 1
    stop = at
    while stop < min(len(free), at + MOST) and not free[stop]:
        stop += 1
    return list(range(at, stop))


def _lasts(saved: Floats) -> int:
    """Return how many steps it takes until the sum is largest; 0 if it never is above 0."""
    if not len(saved):
        return 0
    sums = np.cumsum(saved)
    last = int(np.argmax(sums))
    return last + 1 if sums[last] > 0 else 0
