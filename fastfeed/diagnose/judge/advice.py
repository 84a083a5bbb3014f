"""The changes to make, the knob of each, and the predicted gain, by the model of
fastfeed.model.prediction."""

from __future__ import annotations

from dataclasses import replace

from fastfeed.diagnose.diagnosis import Cause, Recommendation
from fastfeed.diagnose.judge.changes import BY_CODE, nothing
from fastfeed.diagnose.judge.facts import Facts
from fastfeed.diagnose.judge.gains import WORTH

COUNTS = ("threads", "processes")  # knobs


def advice_of(causes: tuple[Cause, ...], facts: Facts) -> tuple[Recommendation, ...]:
    """Return the changes that remove each cause, the greatest gain first."""
    found: dict[str, Recommendation] = {}
    for cause in causes:
        counts = any(knob in found for knob in COUNTS)
        changes = BY_CODE.get(cause.code, nothing)(cause, facts)
        if cause.code.startswith("input."):
            changes = [_at_most(one, facts.limit) for one in changes if facts.limit >= WORTH]
        for one in changes:
            if not (counts and one.knob in COUNTS):  # the number of producers is one decision
                found.setdefault(one.knob, one)
    return tuple(sorted(found.values(), key=lambda one: -one.predicted_speedup))


def _at_most(one: Recommendation, limit: float) -> Recommendation:
    low, high = (min(end, limit) for end in one.interval)
    return replace(one, predicted_speedup=min(one.predicted_speedup, limit), interval=(low, high))
