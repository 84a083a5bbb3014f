"""The headline of a diagnosis: one sentence, whose figures are those of the report below it."""

from __future__ import annotations

from fastfeed.diagnose.diagnosis import CODES, Diagnosis


def headline_of(diagnosis: Diagnosis) -> str:
    """Return the verdict as one sentence, or why there is none."""
    from fastfeed.model.workload import INPUT_BOUND  # imports numpy

    causes, figures = diagnosis.causes, diagnosis.figures
    if diagnosis.abstained or not causes:
        return f"No verdict: {diagnosis.abstained}."
    first = causes[0]
    if first.code == "feed.dead":
        return f"The feed is dead: {first.evidence[0]}"
    if figures is None:
        return f"{first.code}: {CODES[first.code]}"
    rate = f"{figures.steps_per_second:.3g} steps/s"
    if first.code.startswith("step."):
        keeps_up = f"the input keeps up (starvation {figures.starvation:.0%})"
        return f"{rate}: {keeps_up}; {CODES[first.code]}."
    text = f"{rate}, {first.share:.0%} of the time is lost: {CODES[first.code]}"
    if figures.starvation >= INPUT_BOUND:
        gain = diagnosis.speedup_if_input_free
        text += f"; without any wait for input the loop would be {gain:.1f} times as fast"
    return f"{text}."
