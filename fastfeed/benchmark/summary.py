"""One sentence of advice from the measurements, and the gate for builds."""

from __future__ import annotations

import math

from fastfeed.benchmark.sweep import Setting, Sweep
from fastfeed.model.prediction import predict
from fastfeed.model.simulate import simulate
from fastfeed.model.workload import INPUT_BOUND, LIMIT_LOCK, STEP_PARTS, Producers, fed_by

CANDIDATES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
MIN_SLOW_DOWN = 1.5  # a step this many times slower than alone is reported
# share of a producer's time with the interpreter lock from which threads cannot help
MAX_GIL_SHARE = 0.5


def advise(sweep: Sweep) -> str:
    """Return the change that is advised, with its gain."""
    best = max(sweep.settings, key=lambda s: s.rate)
    settings = sweep.kinds[best.kind]
    # processes cost memory and a start, threads nearly nothing
    enough = min(
        (s for s in settings if s.rate >= 0.95 * best.rate),
        key=lambda s: (s.producers.processes, s.producers.threads),
    )
    lead = _lead_of_executor(sweep, best)
    if not sweep.step.step_s:
        return (
            f"{lead}{best.producers}: {best.rate:.0f} batches/s; there is no step to starve, take "
            "--consumer sim:20ms."
        )
    starved = enough.middle("starvation")
    held = sweep.producer.gil_s / sweep.producer.batch_s
    if best.predicted and held >= MAX_GIL_SHARE and not any(sweep.plan.processes):
        slowest = max(settings, key=sweep.slow_down)
        if sweep.slow_down(slowest) >= MIN_SLOW_DOWN or starved >= INPUT_BOUND:
            return (
                f"The producers hold the interpreter lock for {held:.0%} of their time: more "
                f"threads cannot help, and {slowest.producers} made the step itself "
                f"{sweep.slow_down(slowest):.1f} times slower; try {_option(sweep)}: every process "
                "has a lock of its own."
            )
    if starved < INPUT_BOUND:
        next_step = "more gains nothing, the step is the limit."
    elif best.predicted:
        next_step = _next_step(sweep, enough)
    else:
        next_step = "the input is the limit."
    return f"{lead}{enough.producers}: starvation {starved:.0%}; {next_step}"


def auto_sentence(sweep: Sweep) -> str:
    """Return how far the producers that the runner chose are from the best setting; "" without
    them."""
    if sweep.auto is None:
        return ""
    best, rate = max(sweep.settings, key=lambda s: s.rate), sweep.auto.rate
    chosen = ", ".join(dict.fromkeys(map(str, sweep.auto.producers)))
    return (
        f'workers="auto" chose {chosen}: {rate:.1f} steps/s, {rate / best.rate:.2f} of the best '
        f"setting ({best.producers}, {best.rate:.1f})."
    )


def check_au(sweep: Sweep, percent: float) -> tuple[bool, str]:
    """Check if the best setting reaches an AU of `percent`; return the result and the line that
    explains it."""
    best = max(sweep.settings, key=sweep.au)
    was = 100 * sweep.au(best)
    among = f", the best of {len(sweep.settings)} settings" if len(sweep.settings) > 1 else ""
    text = f"AU {was:.1f} % with {best.producers}{among}; needed {percent:g} %: "
    if was >= percent:
        return True, f"{text}passed."
    needed = math.ceil(sweep.producer.batch_s / sweep.step.step_s) if sweep.step.step_s else 1
    batch_ms, step_ms = sweep.producer.batch_s * 1e3, sweep.step.step_s * 1e3
    cost = f"a batch costs one producer {batch_ms:.1f} ms, the step {step_ms:.1f} ms"
    if needed > best.producers.count:
        knob, why = "raise --threads or --processes", f"so {needed} producers are the least"
    else:
        knob, why = "try --processes", f"and {best.producers} should have been enough"
    return False, f"{text}FAILED. Make batches cheaper, or {knob}: {cost}, {why}."


def _lead_of_executor(sweep: Sweep, best: Setting) -> str:
    """Return the quickest executor of --augment, if several were measured, and the others."""
    rivals = [max(s, key=lambda s: s.rate) for k, s in sweep.kinds.items() if k != best.kind]
    if not rivals:
        return ""
    told = ", ".join(f"{one.kind} {one.rate:.1f}" for one in rivals)
    close = [one.kind for one in rivals if max(one.rates) >= min(best.rates)]
    seen = f"; no difference seen to {', '.join(close)}" if close else ""
    return f"Augment(on={best.kind!r}) is the quickest: {best.rate:.1f} steps/s ({told}){seen}. "


def _option(sweep: Sweep) -> str:
    """Return the option to try: one process frees the trainer's lock; bytecode can use at most as
    many as there are cores."""
    return "--processes 0,1" + f",{sweep.profile.cores}" * (sweep.profile.cores > 1)


def _next_step(sweep: Sweep, enough: Setting) -> str:
    """Return what more producers would gain, by the model."""
    now = enough.producers
    # the fastest step that was measured: a ceiling below the reached rate would promise nothing
    faster = min(1.0, enough.middle("step_s") / sweep.step.step_s)
    profile = sweep.profile.scaled(step=dict.fromkeys(STEP_PARTS, faster))
    # more threads; and more processes if there are some, which the model knows then
    every = [Producers(n, now.processes) for n in CANDIDATES if n > now.threads]
    every += [Producers(now.threads, n) for n in CANDIDATES if n > now.processes > 0]
    more = {p: simulate(fed_by(profile, p), p) for p in sorted(every, key=lambda p: p.count)}
    best = max((p.rate for p in more.values()), default=0.0)
    if best < 1.05 * enough.rate:
        limit = list(more.values())[-1].limit if more else "the step"
        lock = limit == LIMIT_LOCK and not any(sweep.plan.processes)
        hint = f"; try {_option(sweep)}" if lock else ""
        kind = "producers" if now.processes else "threads"
        return f"more {kind} gain nothing, the limit is: {limit}{hint}."
    producers = next(n for n, p in more.items() if p.rate >= 0.95 * best)
    found = predict(fed_by(profile, producers), producers)
    return (
        f"{producers} are predicted to make {found.low:.0f} to {found.high:.0f} steps/s "
        f"({found.rate / enough.rate:.1f} times as many), and then the limit is: {found.limit}."
    )
