"""From evidence to a diagnosis, or to the reason why there is none."""

from __future__ import annotations

from collections.abc import Sequence

from fastfeed.diagnose.diagnosis import CODES, Cause, Diagnosis, Figures, Recommendation
from fastfeed.diagnose.evidence import Evidence
from fastfeed.diagnose.judge import signals
from fastfeed.diagnose.judge.advice import advice_of
from fastfeed.diagnose.judge.causes import causes_of, losses_of, to_producers
from fastfeed.diagnose.judge.ceiling import ceiling_of, speedup_of
from fastfeed.diagnose.judge.facts import Facts
from fastfeed.diagnose.judge.figures import (
    StepTable,
    figures_of,
    rows_of,
    without_unnamed,
)
from fastfeed.diagnose.judge.producer_profile import makers_of
from fastfeed.steps.timeline import OBSERVING

FEWEST = 20  # steps that a verdict needs
INPUT_BOUND = 0.05
# starvation that follows from the duration of steps, which noise of other processes prolongs, too
DOUBTFUL = 0.2


def judge(evidence: Evidence, *, script: str = "", died: Sequence[str] = ()) -> Diagnosis:
    """Return why this training is slow, and what would change it."""
    rows, makers = rows_of(evidence), makers_of(evidence)
    figures, ceiling, free = figures_of(evidence, rows), None, rows
    speedup, interval = alike = (1.0, (1.0, 1.0))
    if figures is not None:
        losses = losses_of(evidence, rows, makers=makers)
        inside = losses.lock + to_producers(evidence, losses, makers=makers)
        free = without_unnamed(rows) if losses.lock >= INPUT_BOUND else rows
        ceiling = ceiling_of(evidence, rows, inside=inside)
        speedup, interval = (
            speedup_of(free, ceiling, inside=inside) if ceiling is not None else alike
        )
    causes = (_dead(evidence, died),) if died else causes_of(evidence, rows, makers=makers)
    abstained = None if died else _abstains(evidence, rows, causes=causes)
    advice: tuple[Recommendation, ...] = ()
    if figures is not None and ceiling is not None and not abstained and not died:
        advice = advice_of(causes, Facts(evidence, free, figures, ceiling, makers, interval[1]))
    verdict = causes[0].code if causes and not abstained else None
    return Diagnosis(
        verdict=verdict,
        headline=_headline(verdict, causes, figures=figures, speedup=speedup, abstained=abstained),
        causes=causes,
        figures=figures,
        ceiling=ceiling,
        speedup_if_input_free=speedup,
        speedup_range=interval,
        recommendations=advice,
        abstained=abstained,
        evidence=evidence,
        script=script,
        overhead=_overhead(evidence, figures),
        died=tuple(died),
    )


def _dead(evidence: Evidence, died: Sequence[str]) -> Cause:
    lines = died[0].strip().splitlines() or ["a producer"]
    # a stack, not a traceback, which ends with the exception
    at = lines[0].removesuffix(" is at")
    first = lines[-1] if at == lines[0] else f"{at} is blocked"
    waited = (
        f"no step has ended for {evidence.waiting_now_s:.0f} s" if evidence.waiting_now_s else ""
    )
    return Cause("feed.dead", 1.0, tuple(text for text in (first, waited) if text))


def _abstains(evidence: Evidence, rows: StepTable, *, causes: Sequence[Cause]) -> str | None:
    """Return why there is no verdict, or None."""
    loop, steps = evidence.loop, len(rows.period)
    if loop is None:
        return (
            "no training step was seen: needed a loop over batches that is known (a session, "
            "Keras, tf.data, a DataLoader, a FeedRunner) or marked with fastfeed.watch; there was "
            "none"
        )
    if steps < FEWEST:
        return f"too few steps: needed {FEWEST} after warm-up, there were {steps}; raise --seconds or lower --warmup"
    if loop.waits == "hidden" and causes and causes[0].code == "step.bound":
        return (
            f"what the steps of {loop.name} wait for input is in their own time, where nobody "
            "could measure it: take the batches outside of the call, or mark the input with "
            "fastfeed.watch"
        )
    waits = causes and causes[0].code.startswith("input.") and loop.waits == "modelled"
    if waits and rows.starvation < DOUBTFUL and signals.noisy(evidence):
        return (
            f"what {loop.name} waits for input, {rows.starvation:.0%} of the time, follows from "
            f"how long its steps take, and other processes, with {evidence.machine.other_cpu:.1f} "
            f"of {evidence.machine.cores} cores, make them longer, too: diagnose it on a quiet "
            "machine"
        )
    unseen = loop.waits == "none" and not evidence.parts
    if unseen and rows.share(rows.host) >= INPUT_BOUND:
        return (
            f"{rows.share(rows.host):.0%} of the time lies between the steps, and what happens "
            f"there was not seen ({'; '.join(evidence.missing) or 'no samples of the loop'}): mark "
            "the input with fastfeed.watch"
        )
    if rows.starvation >= INPUT_BOUND and not any(
        c.code.startswith(("input", "external")) for c in causes
    ):
        missing = "; ".join(evidence.missing) or "no thread or process was seen that makes batches"
        return f"the step waits for input for {rows.starvation:.0%} of the time, and who makes it was not seen: {missing}"
    return None


def _headline(
    verdict: str | None,
    causes: Sequence[Cause],
    *,
    figures: Figures | None,
    speedup: float,
    abstained: str | None,
) -> str:
    if verdict is None or figures is None:
        return f"No verdict: {abstained}" if verdict is None else f"{verdict}: {CODES[verdict]}"
    rate = f"{figures.steps_per_second:.3g} steps/s"
    if verdict.startswith("step."):
        return (
            f"{rate}: the input keeps up (starvation {figures.starvation:.0%}); {CODES[verdict]}."
        )
    if verdict == "feed.dead":
        return f"The feed is dead: {causes[0].evidence[0]}"
    text = f"{rate}, {causes[0].share:.0%} of the time is lost: {CODES[verdict]}"
    if figures.starvation >= INPUT_BOUND:
        text += f"; without any wait for input it would be {speedup:.1f} times as fast"
    return f"{text}."


def _overhead(evidence: Evidence, figures: Figures | None) -> float:
    """Return CPU seconds of the diagnosis, and its cost to the loop's thread, relative to the
    observed time."""
    seconds = evidence.end_s - evidence.start_s
    looking = (
        mark
        for mark in evidence.marks
        if mark.kind == OBSERVING and mark.start_s >= evidence.start_s
    )
    cost_s = evidence.overhead_s + sum(mark.end_s - mark.start_s for mark in looking)
    return cost_s / seconds if figures is not None and seconds > 0 else 0.0
