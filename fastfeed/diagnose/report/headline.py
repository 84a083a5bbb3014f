"""The headline of a diagnosis: one sentence, whose figures are those of the report below it."""

from __future__ import annotations

import math

from fastfeed.diagnose.diagnosis import CODES, Diagnosis
from fastfeed.diagnose.report.formats import factor, percent, rate


def greatest_gain(diagnosis: Diagnosis) -> float:
    """Return the most that the loop can gain without its first cause.

    All causes of the input together are one loss, because a change removes parts of several.
    """
    first = diagnosis.causes[0]
    if first.code.startswith("input."):
        return max(1.0, diagnosis.speedup_if_input_free)
    return 1 / (1 - first.share) if first.share < 1 else math.inf


def headline_of(diagnosis: Diagnosis) -> str:
    """Return the verdict as one sentence, or why there is none.

    The share that is lost and the gain are one figure: the share is 1 - 1 / gain.
    """
    causes, figures = diagnosis.causes, diagnosis.figures
    if diagnosis.abstained or not causes:
        return f"No verdict: {diagnosis.abstained}."
    first = causes[0]
    if first.code == "feed.dead":
        return f"The feed is dead: {first.evidence[0]}"
    if figures is None:
        return f"{first.code}: {CODES[first.code]}."
    speed = f"{rate(figures.steps_per_second)} steps/s"
    if first.code.startswith("step."):
        waits = percent(figures.starvation)
        return f"{speed}: {CODES[first.code]}. Steps wait for input for {waits} of the time."
    gain = greatest_gain(diagnosis)
    to_input = " to input" if first.code.startswith("input.") else ""
    return (
        f"{speed}; {percent(1 - 1 / gain)} of the time is lost{to_input}: "
        f"{CODES[first.code]}. Without this loss the loop would be {factor(gain)} as fast, at most."
    )
