"""From evidence to a diagnosis, or to the reason why there is none."""

from __future__ import annotations

from collections.abc import Sequence

from fastfeed.diagnose.diagnosis import (
    CODES,
    MIN_STEPS,
    Cause,
    Diagnosis,
    Figures,
    Recommendation,
)
from fastfeed.diagnose.evidence import DeadProducer, Evidence
from fastfeed.diagnose.judge import signals
from fastfeed.diagnose.judge.advice import advice_of
from fastfeed.diagnose.judge.causes import causes_of, contention_of, time_loss_of
from fastfeed.diagnose.judge.ceiling import ceiling_of
from fastfeed.diagnose.judge.facts import Facts
from fastfeed.diagnose.judge.figures import (
    StepTable,
    figures_of,
    step_table_of,
    without_unnamed_pauses,
)
from fastfeed.diagnose.judge.observed_costs import Observed, feed_of
from fastfeed.diagnose.judge.observed_feed import ObservedFeed, without_input
from fastfeed.diagnose.judge.producer_profile import producer_profile_of
from fastfeed.model.workload import INPUT_BOUND
from fastfeed.steps.timeline import OBSERVING

# Starvation below this is doubtful if it was derived from the duration of steps while other
# processes, which prolong them as well, used the cores.
DOUBTFUL_STARVATION = 0.2


def judge(evidence: Evidence, *, script: str = "", died: Sequence[DeadProducer] = ()) -> Diagnosis:
    """Return the diagnosis of a training: why it is slow, and what would make it faster.

    `died`: producers that have ended or are blocked.
    """
    table, producers = step_table_of(evidence), producer_profile_of(evidence)
    figures, ceiling, feed, counted = figures_of(evidence, table), None, None, table
    speedup, interval = 1.0, (1.0, 1.0)
    if figures is not None:
        loss = time_loss_of(evidence, table, producers=producers)
        contention = loss.lock + contention_of(evidence, loss, producers=producers)
        if loss.lock >= signals.MIN_SHARE:
            counted = without_unnamed_pauses(table)
        ceiling = ceiling_of(evidence, table, contention=contention)
        if ceiling is not None:
            observed = Observed(
                evidence, counted, ceiling, producers, contention, tail=loss.tail > 0
            )
            feed = ObservedFeed(feed_of(observed), figures, pure=ceiling.experiment)
            speedup, interval = feed.gain(without_input)
    causes = (_dead(evidence, died),) if died else causes_of(evidence, table, producers=producers)
    abstained = None if died else _reason_to_abstain(evidence, table, causes=causes)
    advice: tuple[Recommendation, ...] = ()
    if figures is not None and feed is not None and not abstained and not died:
        facts = Facts(evidence, counted, figures, producers, feed)
        advice = advice_of(causes, facts)
    headline = _headline(causes, figures=figures, speedup=speedup, abstained=abstained)
    return Diagnosis(
        verdict=causes[0].code if causes and not abstained else None,
        headline=headline,
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
        died=tuple(dead.text for dead in died),
        reproduction=feed.reproduction if feed is not None else None,
    )


def _dead(evidence: Evidence, died: Sequence[DeadProducer]) -> Cause:
    """Return the cause of dead or blocked producers, with the first one as its evidence."""
    first = died[0]
    # the last line of a traceback is the exception
    texts = [f"{first.name} is blocked" if first.blocked else first.text.strip().split("\n")[-1]]
    if evidence.waiting_now_s:
        texts.append(f"no step has ended for {evidence.waiting_now_s:.0f} s")
    return Cause("feed.dead", 1.0, tuple(text for text in texts if text))


def _reason_to_abstain(
    evidence: Evidence, table: StepTable, *, causes: Sequence[Cause]
) -> str | None:
    """Return why there is no verdict; None if there is one."""
    loop, steps = evidence.loop, len(table.period)
    if loop is None:
        return (
            "no training step was observed; a verdict needs a loop over batches that is known (a "
            "session, Keras, tf.data, a DataLoader, a FeedRunner) or marked with fastfeed.watch"
        )
    if steps < MIN_STEPS and loop.waits == "hidden":
        return (
            f"{loop.name} was observed for {steps} calls, and their waits for input, if there are "
            "any, are hidden in them; take the batches outside of the call, or mark the input with "
            "fastfeed.watch"
        )
    if steps < MIN_STEPS:
        return (
            f"too few steps: a verdict needs {MIN_STEPS} after warm-up, there were {steps}; raise "
            "--seconds or lower --warmup"
        )
    code = causes[0].code if causes else ""
    if loop.waits == "hidden" and code == "step.bound":
        return (
            f"the waits for input of {loop.name} lie inside its steps, where they cannot be "
            "measured; take the batches outside of the call, or mark the input with fastfeed.watch"
        )
    derived = loop.waits == "modelled" and code.startswith("input.")
    if derived and table.starvation < DOUBTFUL_STARVATION and signals.noisy(evidence):
        machine = evidence.machine
        return (
            f"the starvation of {loop.name}, {table.starvation:.0%} of the time, was derived from "
            f"the duration of its steps, which other processes on {machine.other_cpu:.1f} of "
            f"{machine.cores} cores prolong as well; diagnose it on a quiet machine"
        )
    host = table.share(table.host)
    if loop.waits == "none" and not evidence.parts and host >= signals.MIN_SHARE:
        missing = "; ".join(evidence.missing) or "no samples of the loop"
        return (
            f"{host:.0%} of the time lies between the steps, and it is unknown what happens there "
            f"({missing}); mark the input with fastfeed.watch"
        )
    explained = any(cause.code.startswith(("input", "external")) for cause in causes)
    if table.starvation >= INPUT_BOUND and not explained:
        missing = "; ".join(evidence.missing) or "no thread or process that makes batches was found"
        return (
            f"the step waits for input for {table.starvation:.0%} of the time, but what makes the "
            f"input was not observed: {missing}"
        )
    return None


def _headline(
    causes: Sequence[Cause], *, figures: Figures | None, speedup: float, abstained: str | None
) -> str:
    if abstained or not causes:
        return f"No verdict: {abstained}"
    first = causes[0]
    if figures is None:
        return f"{first.code}: {CODES[first.code]}"
    if first.code == "feed.dead":
        return f"The feed is dead: {first.evidence[0]}"
    rate = f"{figures.steps_per_second:.3g} steps/s"
    if first.code.startswith("step."):
        keeps_up = f"the input keeps up (starvation {figures.starvation:.0%})"
        return f"{rate}: {keeps_up}; {CODES[first.code]}."
    text = f"{rate}, {first.share:.0%} of the time is lost: {CODES[first.code]}"
    if figures.starvation >= INPUT_BOUND:
        text += f"; without any wait for input the loop would be {speedup:.1f} times as fast"
    return f"{text}."


def _overhead(evidence: Evidence, figures: Figures | None) -> float:
    """Return the cost of the diagnosis as a share of the observed time.

    It consists of CPU seconds, and of the time that observing took from the loop's thread.
    """
    if figures is None or evidence.seconds <= 0:
        return 0.0
    observing_s = sum(
        mark.end_s - mark.start_s
        for mark in evidence.marks
        if mark.kind == OBSERVING and mark.start_s >= evidence.start_s
    )
    return (evidence.overhead_s + observing_s) / evidence.seconds
