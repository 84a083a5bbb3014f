"""Truth of a script from its measured rounds, and the codes that are right: pure arithmetic."""

from __future__ import annotations

import statistics
from typing import Any

from bench.public.recipe import Recipe

SAME = 1.05  # a gain below this is none: the definition of `step.bound`
SPREAD = 0.1  # rounds of the same variant that differ by more measure nothing as fine as SAME
# On the processors of a machine without an accelerator no experiment with input or pauses tells a
# step that computes from one that is driven by Python; both advise to leave the input alone.
STEP = ("step.bound", "step.host")


def truth(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Return medians of steps/s and of the gains within a round, from rounds of all variants."""
    found: dict[str, Any] = {"steps_per_second": {}, "gain": {}, "range": {}}
    for name in dict.fromkeys(name for one in rounds for name in one):
        rates = [one[name] for one in rounds if name in one]
        found["steps_per_second"][name] = statistics.median(rates)
        if name != "now":
            gains = [one[name] / one["now"] for one in rounds if name in one]
            found["gain"][name] = statistics.median(gains)
            found["range"][name] = [min(gains), max(gains)]
    now = [one["now"] for one in rounds]
    found["steady"] = max(now) <= (1 + SPREAD) * min(now)
    found["lost_to_input"] = max(0.0, 1 - 1 / found["gain"]["free"])
    return found


def expected(recipe: Recipe, measured: dict[str, Any]) -> tuple[str, ...]:
    """Return the right codes by what was gained, the first one by the medians.

    Rounds that disagree, about whether something gains or which of two gains more, make both
    answers right.
    """
    ranges, gain = measured["range"], measured["gain"]
    free, quiet = ranges["free"], ranges.get("quiet", [1.0, 1.0])
    found: list[tuple[float, tuple[str, ...]]] = []
    if free[1] >= SAME:
        found.append((gain["free"], recipe.input_codes))
    if quiet[1] >= SAME:
        found.append((gain["quiet"], recipe.pause_codes))
    if free[0] < SAME and quiet[0] < SAME:
        found.append((SAME, STEP))
    found.sort(key=lambda one: -one[0])
    right = list(found[0][1])
    for value, codes in found[1:]:
        if (value >= SAME and _overlap(free, quiet)) or SAME in (value, found[0][0]):
            right += codes
    for name, change in recipe.changes.items():
        if change.codes and ranges.get(name, [0.0, 0.0])[1] >= SAME:
            right += change.codes
    return tuple(dict.fromkeys(right))


def input_helps(measured: dict[str, Any]) -> bool:
    """Return True if some round gained from a ready batch."""
    return bool(measured["range"]["free"][1] >= SAME)


def _overlap(one: list[float], other: list[float]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]
