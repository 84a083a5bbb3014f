"""One sentence that follows from the numbers."""

from __future__ import annotations

from dataclasses import replace

from fastfeed.benchmark.sweep import Setting, Sweep
from fastfeed.model import BESIDE, INPUT_BOUND, Profile, predict

CANDIDATES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
SLOWED = 1.5  # a step this many times slower than alone is worth a word
HELD = 0.5  # share of a producer's time with the interpreter lock from which threads cannot help


def slow_down(sweep: Sweep, setting: Setting) -> float:
    """How many times slower the step itself is beside the producers; nan where the wait is not known."""
    return setting.middle("step_s") / sweep.step.step_s if sweep.step.step_s else float("nan")


def advise(sweep: Sweep) -> str:
    """What to change, and what it will gain."""
    settings = sweep.ours()
    best = max(settings, key=lambda s: s.rate)
    enough = next(s for s in sorted(settings, key=lambda s: s.threads) if s.rate >= 0.95 * best.rate)
    if not sweep.step.step_s:
        return f"{_threads(best)}: {best.rate:.0f} batches/s; there is no step to starve, take --consumer sim:20ms."
    held = sweep.producer.gil_s / sweep.producer.batch_s
    slowest = max(settings, key=lambda s: slow_down(sweep, s))
    if held >= HELD and (slow_down(sweep, slowest) >= SLOWED or enough.middle("starvation") >= INPUT_BOUND):
        return (
            f"The producers hold the interpreter lock for {held:.0%} of their time: more threads cannot help, and "
            f"{_threads(slowest)} made the step itself {slow_down(sweep, slowest):.1f} times slower; do this work in "
            "other processes, or in native code that releases the lock."
        )
    starved = enough.middle("starvation")
    if starved < INPUT_BOUND:
        return f"{_threads(enough)}: starvation {starved:.0%}; more gains nothing, the step is the limit."
    return f"{_threads(enough)}: starvation {starved:.0%}; {_next_step(sweep, enough)}"


def _next_step(sweep: Sweep, enough: Setting) -> str:
    """What more threads would do, by the model."""
    more = [n for n in CANDIDATES if n > enough.threads]
    profile = _as_measured(sweep, enough)
    rates = {n: predict(profile, n) for n in more}
    best = max((p.rate for p in rates.values()), default=0.0)
    if best < 1.05 * enough.rate:
        limit = rates[more[-1]].limit if more else "the step"
        return f"more threads gain nothing, the limit is: {limit}."
    threads = next(n for n in more if rates[n].rate >= 0.95 * best)
    found = rates[threads]
    return (
        f"{threads} threads are predicted to make {found.low:.0f} to {found.high:.0f} steps/s "
        f"({found.rate / enough.rate:.1f} times as many), and then the limit is: {found.limit}."
    )


def _as_measured(sweep: Sweep, setting: Setting) -> Profile:
    """The profile with the quickest step that was seen: a ceiling below what is reached would promise nothing."""
    beside = BESIDE if sweep.profile.live else 1.0
    return replace(sweep.profile, step_s=min(sweep.step.step_s, setting.middle("step_s") / beside))


def _threads(setting: Setting) -> str:
    return f"{setting.threads} thread{'s' if setting.threads > 1 else ''}"
