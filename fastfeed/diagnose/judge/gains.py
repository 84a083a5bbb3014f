"""What a change gains: the arithmetic that all of them share."""

from __future__ import annotations

from fastfeed.diagnose.diagnosis import Recommendation
from fastfeed.diagnose.judge.facts import Facts

WORTH = 1.03  # a gain below it is none
SURE = (0.1, 0.1)  # below and above: where a loss simply goes away
UNSURE = (0.15, 0.4)  # where nobody knows how much of it does
UNKNOWN = (0.6, 0.6)  # where nothing that was seen says what the change leaves


def gain(
    change: str,
    knob: tuple[str, str],
    *,
    speedup: float,
    spread: tuple[float, float],
    why: str = "",
) -> Recommendation:
    """The change with its speed-up and the interval; `spread`: by which shares of it that lies
    below and above."""
    speedup = max(1.0, speedup)
    interval = max(1.0, speedup * (1 - spread[0])), speedup * (1 + spread[1])
    return Recommendation(change, *knob, speedup, interval, why)


def gone(share: float) -> float:
    """The speed-up where a share of the time goes away."""
    return 1 / max(1e-3, 1 - share)


def lighter(facts: Facts, fraction: float) -> float:
    """The speed-up where a batch costs its producers so much less."""
    makers = facts.makers
    if makers is None:
        return 1.0
    if makers.where == "trainer":
        return 1 / max(1e-3, 1 - fraction * facts.rows.share(facts.rows.wait + facts.rows.boundary))
    return max(1.0, min(facts.most / facts.now, 1 / max(1e-3, 1 - fraction)))
