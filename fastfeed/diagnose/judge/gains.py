"""Predicted gain of a change: the arithmetic that all changes share."""

from __future__ import annotations

from fastfeed.diagnose.diagnosis import Recommendation
from fastfeed.diagnose.judge.facts import Facts

MIN_GAIN = 1.03  # a smaller speed-up is no gain
# Relative ends of an interval, below and above.
SURE_SPREAD = (0.1, 0.1)  # a loss disappears
UNSURE_SPREAD = (0.15, 0.4)  # an unknown part of it disappears
UNKNOWN_SPREAD = (0.6, 0.6)  # the cost of what replaces it is unknown


def recommend(
    change: str,
    knob: tuple[str, str],
    *,
    speedup: float,
    spread: tuple[float, float],
    why: str = "",
) -> Recommendation:
    """Return the change with its speed-up and the interval that `spread` makes of it."""
    speedup = max(1.0, speedup)
    interval = max(1.0, speedup * (1 - spread[0])), speedup * (1 + spread[1])
    return Recommendation(change, *knob, speedup, interval, why)


def speedup_without(share: float) -> float:
    """Return the speed-up if a share of the time disappears."""
    return 1 / max(1e-3, 1 - share)


def speedup_if_cheaper(facts: Facts, fraction: float) -> float:
    """Return the speed-up if a batch costs its producers this fraction less."""
    producers = facts.producers
    if producers is None:
        return 1.0
    if producers.kind == "trainer":
        return speedup_without(fraction * facts.table.waited)
    return max(1.0, min(facts.max_rate / facts.rate, speedup_without(fraction)))
