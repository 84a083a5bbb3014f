"""Recommendations: the changes that remove the causes, ranked by their predicted gain."""

from __future__ import annotations

from fastfeed.diagnose.diagnosis import Cause, Recommendation
from fastfeed.diagnose.judge.changes import BY_CODE, nothing
from fastfeed.diagnose.judge.facts import Facts

COUNT_KNOBS = ("threads", "processes")  # the number of producers, which is one decision


def advice_of(causes: tuple[Cause, ...], facts: Facts) -> tuple[Recommendation, ...]:
    """Return the changes that remove the causes, the greatest gain first."""
    found: dict[str, Recommendation] = {}
    for cause in causes:
        counted = any(knob in found for knob in COUNT_KNOBS)
        changes = BY_CODE.get(cause.code, nothing)(cause, facts)
        for one in changes:
            if not (counted and one.knob in COUNT_KNOBS):
                found.setdefault(one.knob, one)
    return tuple(sorted(found.values(), key=lambda one: -one.predicted_speedup))
