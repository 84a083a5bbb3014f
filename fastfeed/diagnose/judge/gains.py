"""The gain of a change: the arithmetic that all changes share."""

from __future__ import annotations

from fastfeed.diagnose.diagnosis import Recommendation
from fastfeed.diagnose.judge.facts import Facts

WORTH = 1.03  # a smaller gain is none
SURE = (0.1, 0.1)  # below and above: a loss simply disappears
UNSURE = (0.15, 0.4)  # an unknown part of it disappears
UNKNOWN = (0.6, 0.6)  # what the change leaves is unknown


def gain(
    change: str,
    knob: tuple[str, str],
    *,
    speedup: float,
    spread: tuple[float, float],
    why: str = "",
) -> Recommendation:
    """Return the change with its speed-up and the interval; `spread`: its relative ends below and
    above."""
    speedup = max(1.0, speedup)
    interval = max(1.0, speedup * (1 - spread[0])), speedup * (1 + spread[1])
    return Recommendation(change, *knob, speedup, interval, why)


def gone(share: float) -> float:
    """Return the speed-up if a share of the time disappears."""
    return 1 / max(1e-3, 1 - share)


def lighter(facts: Facts, fraction: float) -> float:
    """Return the speed-up if a batch costs its producers this much less."""
    makers = facts.makers
    if makers is None:
        return 1.0
    if makers.where == "trainer":
        return 1 / max(1e-3, 1 - fraction * facts.rows.share(facts.rows.wait + facts.rows.boundary))
    return max(1.0, min(facts.most / facts.now, 1 / max(1e-3, 1 - fraction)))
