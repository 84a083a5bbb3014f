"""Truth of a script from its measured rounds: pure arithmetic."""

from __future__ import annotations

import statistics
from typing import Any

SAME = 1.05  # a gain below this is none
SPREAD = 0.1  # rounds of a variant that differ more measure nothing as fine as SAME


def truth(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Return medians of steps/s and of the gains within a round, from rounds of all variants."""
    variants = list(rounds[0])
    found: dict[str, Any] = {"rounds": rounds, "steps_per_second": {}, "gain": {}, "range": {}}
    for name in variants:
        rates = [one[name] for one in rounds]
        found["steps_per_second"][name] = statistics.median(rates)
        if name != "now":
            gains = [one[name] / one["now"] for one in rounds]
            found["gain"][name] = statistics.median(gains)
            found["range"][name] = [min(gains), max(gains)]
    now = [one["now"] for one in rounds]
    found["steady"] = max(now) <= (1 + SPREAD) * min(now)
    found["lost_to_input"] = max(0.0, 1 - 1 / found["gain"]["free"])
    return found


def limit(measured: dict[str, Any]) -> str:
    """Return what limits a script by its gains: `step`, `input` or `pause`.

    Of two that gain, the one that gains more.
    """
    gain = measured["gain"]
    free, quiet = gain["free"], gain.get("quiet", 1.0)
    if max(free, quiet) < SAME:
        return "step"
    return "input" if free >= quiet else "pause"
