"""One sentence of advice from the measurements."""

from __future__ import annotations

from fastfeed.benchmark.sweep import Setting, Sweep
from fastfeed.model.bounds import LIMIT_LOCK
from fastfeed.model.prediction import predict
from fastfeed.model.simulate import simulate
from fastfeed.model.workload import INPUT_BOUND, STEP_PARTS, Producers, Workload, fed_by

CANDIDATES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
MIN_SLOW_DOWN = 1.5  # a step this many times slower than alone is reported
MAX_GIL_SHARE = (
    0.5  # share of a producer's time with the interpreter lock from which threads cannot help
)


def slow_down(sweep: Sweep, setting: Setting) -> float:
    """Return how many times slower the step itself is beside the producers; nan if the wait is
    unknown."""
    return setting.middle("step_s") / sweep.step.step_s if sweep.step.step_s else float("nan")


def advise(sweep: Sweep) -> str:
    """Return the change that is advised, with its gain."""
    settings = sweep.ours()
    best = max(settings, key=lambda s: s.rate)
    enough = min((s for s in settings if s.rate >= 0.95 * best.rate), key=_cost)
    lead = _gain_of_processes(sweep, enough)
    if not sweep.step.step_s:
        return (
            f"{lead}{best.producers}: {best.rate:.0f} batches/s; there is no step to starve, take "
            "--consumer sim:20ms."
        )
    starved = enough.middle("starvation")
    if _held(sweep) >= MAX_GIL_SHARE and not any(sweep.plan.processes):
        slowest = max(settings, key=lambda s: slow_down(sweep, s))
        if slow_down(sweep, slowest) >= MIN_SLOW_DOWN or starved >= INPUT_BOUND:
            return _try_processes(sweep, slowest)
    if starved < INPUT_BOUND:
        next_step = "more gains nothing, the step is the limit."
    else:
        next_step = _next_step(sweep, enough)
    return f"{lead}{enough.producers}: starvation {starved:.0%}; {next_step}"


def _cost(setting: Setting) -> tuple[int, int]:
    """Return the cost of a setting: processes cost memory and a start, threads nearly nothing."""
    return setting.producers.processes, setting.producers.threads


def _held(sweep: Sweep) -> float:
    return sweep.producer.gil_s / sweep.producer.batch_s


def _gain_of_processes(sweep: Sweep, enough: Setting) -> str:
    """Return the gain of worker processes over threads in the trainer, if both were measured and
    there is one."""
    threads = [s for s in sweep.ours() if not s.producers.processes]
    if not threads or not enough.producers.processes:
        return ""
    best = max(threads, key=lambda s: s.rate)
    if enough.rate < 1.05 * best.rate:
        return ""
    share = _held(sweep)
    held = f", for the producers hold the interpreter lock for {share:.0%} of their time"
    return (
        f"Worker processes make {enough.rate / best.rate:.1f} times as many steps/s as threads "
        f"alone ({enough.rate:.1f} against {best.rate:.1f})"
        f"{held if share >= MAX_GIL_SHARE else ''}. "
    )


def _try_processes(sweep: Sweep, slowest: Setting) -> str:
    return (
        f"The producers hold the interpreter lock for {_held(sweep):.0%} of their time: more "
        f"threads cannot help, and {slowest.producers} made the step itself "
        f"{slow_down(sweep, slowest):.1f} times slower; try {_option(sweep)}: every process has a "
        "lock of its own."
    )


def _option(sweep: Sweep) -> str:
    """Return the option to try: one process frees the trainer's lock; bytecode can use at most as
    many as there are cores."""
    return "--processes 0,1" + f",{sweep.profile.cores}" * (sweep.profile.cores > 1)


def _next_step(sweep: Sweep, enough: Setting) -> str:
    """Return what more producers would gain, by the model."""
    profile = _as_measured(sweep, enough)
    more = {p: simulate(fed_by(profile, p), p) for p in _more_than(enough.producers)}
    best = max((p.rate for p in more.values()), default=0.0)
    kind = "producers" if enough.producers.processes else "threads"
    if best < 1.05 * enough.rate:
        limit = list(more.values())[-1].limit if more else "the step"
        hint = (
            f"; try {_option(sweep)}"
            if limit == LIMIT_LOCK and not any(sweep.plan.processes)
            else ""
        )
        return f"more {kind} gain nothing, the limit is: {limit}{hint}."
    producers = next(n for n, p in more.items() if p.rate >= 0.95 * best)
    found = predict(fed_by(profile, producers), producers)
    return (
        f"{producers} are predicted to make {found.low:.0f} to {found.high:.0f} steps/s "
        f"({found.rate / enough.rate:.1f} times as many), and then the limit is: {found.limit}."
    )


def _more_than(now: Producers) -> list[Producers]:
    """Return settings with more threads; and with more processes if there are some, which the model
    knows then."""
    threads = [Producers(n, now.processes) for n in CANDIDATES if n > now.threads]
    processes = [Producers(now.threads, n) for n in CANDIDATES if n > now.processes > 0]
    return sorted(threads + processes, key=lambda producers: producers.count)


def _as_measured(sweep: Sweep, setting: Setting) -> Workload:
    """Return the profile with the fastest step that was measured: a ceiling below the reached rate
    would promise nothing."""
    factor = min(1.0, setting.middle("step_s") / sweep.step.step_s)
    return sweep.profile.scaled(step=dict.fromkeys(STEP_PARTS, factor))
