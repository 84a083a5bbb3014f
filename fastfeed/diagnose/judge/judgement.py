"""From evidence to a diagnosis, or to the reason why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fastfeed.diagnose.diagnosis import (
    MIN_STEPS,
    Account,
    Cause,
    Diagnosis,
    Doubt,
    Recommendation,
)
from fastfeed.diagnose.evidence import PYTHON, DeadProducer, Evidence
from fastfeed.diagnose.judge.case import Case
from fastfeed.diagnose.judge.causes import (
    PAUSE,
    STEP_BOUND,
    advice_of,
    causes_of,
    losses_of,
    ranked,
)
from fastfeed.diagnose.judge.changes import MIN_GAIN
from fastfeed.diagnose.judge.entries import ledger_of, observing_s
from fastfeed.diagnose.judge.knobs import free_input
from fastfeed.diagnose.judge.observed_costs import Observed, feed_of, foreign_share
from fastfeed.diagnose.judge.producer_profile import ProducerProfile, producer_profile_of
from fastfeed.diagnose.judge.step_ledger import Ledger, accounts_of, figures_of
from fastfeed.model.workload import INPUT_BOUND
from fastfeed.steps.timeline import Loop


def judge(evidence: Evidence, *, script: str = "", died: Sequence[DeadProducer] = ()) -> Diagnosis:
    """Return the diagnosis of a training: why it is slow, and what would make it faster.

    `died`: producers that have ended or are blocked.
    """
    ledger, producers = ledger_of(evidence), producer_profile_of(evidence)
    whole = _case_of(evidence, ledger, producers=producers)
    shares, doubt = _agreed(whole) if whole is not None else ([], None)
    causes = causes_of(whole, shares) if whole is not None else ()
    if died:
        causes, doubt = (_dead(evidence, died),), None
    abstained = None if died else _reason_to_abstain(evidence, ledger, causes=causes)
    advice: tuple[Recommendation, ...] = ()
    speedup, interval = 1.0, (1.0, 1.0)
    if whole is not None:
        speedup, (low, high) = whole.gain(free_input)
        speedup, interval = max(1.0, speedup), (max(1.0, low), max(1.0, high))
        if not abstained and not died and not evidence.short:
            advice = advice_of(whole, shares)
    safe = tuple(one for one in advice if one.interval[0] >= 1)
    return Diagnosis(
        verdict=causes[0].code if causes and not abstained else None,
        causes=causes,
        figures=whole.figures if whole is not None else None,
        ceiling=whole.observed.ceiling if whole is not None else None,
        speedup_if_input_free=speedup,
        speedup_range=interval,
        recommendations=safe,
        may_cost=tuple(one for one in advice if one not in safe),
        no_change="" if safe or died or abstained or whole is None else _no_change(whole, speedup),
        abstained=abstained,
        evidence=evidence,
        script=script,
        died=tuple(dead.text for dead in died),
        doubt=None if abstained else doubt,
        accounts=_accounts(evidence, ledger) if whole is not None else (),
    )


def _case_of(
    evidence: Evidence, ledger: Ledger, *, producers: ProducerProfile | None
) -> Case | None:
    """Return the case of these steps; None without any."""
    figures = figures_of(ledger)
    if figures is None:
        return None
    observed = Observed(evidence, ledger, producers)
    known = observed.ceiling
    low, middle, high = (
        feed_of(observed, step_s=one) for one in (known.low_s, known.step_s, known.high_s)
    )
    return Case(observed, figures, (middle, low, high))


def _agreed(case: Case) -> tuple[list[tuple[str, float]], Doubt | None]:
    """Return the causes with their shares, and the verdicts between which their errors leave it."""
    shares, *others = (
        ranked(losses_of(one), one)
        for one in (replace(case, feeds=(feed, *case.feeds[1:])) for feed in case.feeds)
    )
    verdicts = [rank[0][0] if rank else STEP_BOUND for rank in (shares, *others)]
    sure = verdicts.count(verdicts[0]) / len(verdicts)
    return shares, Doubt(sure, tuple(dict.fromkeys(verdicts)) if sure < 1 else ())


def _dead(evidence: Evidence, died: Sequence[DeadProducer]) -> Cause:
    """Return the cause of dead or blocked producers, with the first one as its evidence."""
    first = died[0]
    # the last line of a traceback is the exception
    texts = [f"{first.name} is blocked" if first.blocked else first.text.strip().split("\n")[-1]]
    if evidence.waiting_now_s:
        texts.append(f"no step has ended for {evidence.waiting_now_s:.0f} s")
    return Cause("feed.dead", 1.0, tuple(text for text in texts if text))


def _too_few(loop: Loop, ledger: Ledger) -> str:
    if loop.waits == "hidden":
        return (
            f"{loop.name} was observed for {len(ledger)} calls, and their waits for input, if any, "
            "are hidden in them; take the batches outside of the call, or mark the input with "
            "fastfeed.watch"
        )
    return (
        f"too few steps: a verdict needs {MIN_STEPS} after warm-up, there were {len(ledger)}; "
        "raise --seconds or lower --warmup"
    )


def _reason_to_abstain(
    evidence: Evidence, ledger: Ledger, *, causes: Sequence[Cause]
) -> str | None:
    """Return why there is no verdict; None if there is one."""
    loop = evidence.loop
    if loop is None:
        return evidence.stepless or (
            "no training step was observed; a verdict needs a loop over batches that is known (a "
            "session, Keras, tf.data, a DataLoader, a FeedRunner) or marked with fastfeed.watch"
        )
    if len(ledger) < MIN_STEPS:
        return _too_few(loop, ledger)
    code = causes[0].code if causes else ""
    if loop.waits == "hidden" and code == STEP_BOUND:
        return (
            f"the waits for input of {loop.name} lie inside its steps, where they cannot be "
            "measured; take the batches outside of the call, or mark the input with fastfeed.watch"
        )
    missing = "; ".join(evidence.missing)
    host = ledger.share(ledger.host)
    if loop.waits == "none" and not evidence.parts and host >= INPUT_BOUND:
        return (
            f"{host:.0%} of the time lies between the steps, and it is unknown what happens there "
            f"({missing or 'no samples of the loop'}); mark the input with fastfeed.watch"
        )
    explained = any(cause.code.startswith(("input", "external")) for cause in causes)
    paused = bool(causes) and causes[0].code == PAUSE and causes[0].share > ledger.starvation
    if ledger.starvation >= INPUT_BOUND and not explained and not paused:
        missing = missing or "no thread or process that makes batches was found"
        return (
            f"the step waits for input for {ledger.starvation:.0%} of the time, but what makes the "
            f"input was not observed: {missing}"
        )
    return None


def _no_change(case: Case, speedup: float) -> str:
    """Return why no change is recommended."""
    if case.evidence.short:
        return f"No change is advised, because none could be tried: {case.evidence.short}"
    limit = case.feed.limit
    if speedup < MIN_GAIN:
        return (
            f"No change of the input gains anything: with free input the loop is as fast ({limit})"
        )
    return (
        f"No change is sure to gain anything: free input would give {speedup:.2f}x, but what would "
        f"make the batches takes from the step, too (the limit is {limit})"
    )


def _accounts(evidence: Evidence, ledger: Ledger) -> tuple[Account, ...]:
    """Return the accounts of the loop's thread."""
    trainer = evidence.trainer
    span_s = float(ledger.begin[-1] + ledger.period[-1]) - evidence.start_s
    python = foreign = 0.0
    if trainer is not None:
        inputs = evidence.parts_of("input")
        python = max(0.0, trainer.share(PYTHON) - sum(p.share_in(PYTHON) for p in inputs))
        python = max(0.0, python - ledger.share(ledger.host))
        queued = trainer.queued_s / max(1e-9, trainer.wall_s)
        foreign = foreign_share(evidence.machine) * queued
    inside = ledger.share(ledger.inside)
    return accounts_of(
        ledger,
        python=min(1.0, python / inside) if inside else 0.0,
        foreign=foreign,
        watched_s=span_s,
        observing_s=observing_s(evidence, ledger),
    )
