"""The arithmetic of a feed: what a batch costs and how many producers there are -> steps/s and starvation.

The one model behind the benchmark's prediction and its advice. Pure functions; seconds and counts only. The bounds
are the operational laws of Denning and Buzen (1978): no resource serves more than its time allows, and N producers
make at most N batches in the time of one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

# What a range must cover: threads share caches and memory, a step beside producers is not the step alone, and machines
# drift. The widths (below, above) are the errors that were seen, see docs/benchmark.md.
SPREAD_ALONE = (0.12, 0.12)
SPREAD_LIVE = (0.17, 0.20)
CROWD = 0.5  # how much longer the wait for the interpreter lock is with many producers than with one, as seen
BESIDE = 1.1  # a step beside a busy feed takes so many times the pure step: 1.04 to 1.23 were seen
SATURATED = 0.9  # less than this share of a proportional gain: more threads have stopped helping
INPUT_BOUND = 0.05  # starvation from which a feed counts as input-bound


@dataclass(frozen=True)
class LivePoint:
    """A short run of the real loop with `threads` producers: batches/s, the core seconds of one batch and step
    together, and the wall seconds of the step without its wait."""

    threads: int
    rate: float
    cpu_s: float
    step_s: float


@dataclass(frozen=True)
class Profile:
    """What one batch costs: `batch_s` of wall time in a producer alone, of which `cpu_s` on a core and `gil_s` with
    the interpreter lock held; for how long (`gil_wait_s`) another thread waits for that lock meanwhile; and what one
    step costs when its input is cached (0: there is no step)."""

    batch_s: float
    cpu_s: float
    gil_s: float
    gil_wait_s: float
    step_s: float
    cores: int
    live: tuple[LivePoint, ...] = ()


@dataclass(frozen=True)
class Prediction:
    """Steps/s with its range, the expected starvation (0 to 1), and what the limit is."""

    rate: float
    low: float
    high: float
    starvation: float
    limit: str


def predict(profile: Profile, threads: int) -> Prediction:
    """Steps/s with `threads` producers: the smallest of what producers, cores, interpreter lock and step allow."""
    bounds = _live_bounds(profile, threads) if profile.live else _bounds(profile, threads)
    limit = min(bounds, key=lambda name: bounds[name])
    rate = bounds[limit]
    below, above = SPREAD_LIVE if profile.live else SPREAD_ALONE
    starved = starvation(rate, step_beside(profile, threads, rate=rate))
    return Prediction(rate, rate * (1 - below), rate * (1 + above), starved, limit)


def step_beside(profile: Profile, threads: int, *, rate: float) -> float:
    """Seconds of a step beside so many producers.

    A step that gave the interpreter lock away waits for it once when it comes back. Where live points exist, a step
    costs what it cost there, and the less there is to wait for the nearer it comes to the pure step.
    """
    if not profile.step_s:
        return 0.0
    if not profile.live:
        return profile.step_s + profile.gil_wait_s * (1 + CROWD * (1 - 1 / threads))
    few, many = _ends(profile)
    if _saturated(few, many):
        if threads > many.threads:  # the share of waiting stays, whatever the rate falls to
            return many.step_s * many.rate / rate
        return _between(few, many, threads=threads, values=(few.step_s, many.step_s))
    pure_s = BESIDE * profile.step_s
    loads = [few.rate * pure_s, many.rate * pure_s, 1.0]
    return float(np.interp(rate * pure_s, loads, [few.step_s, many.step_s, pure_s]))


def starvation(rate: float, step_s: float) -> float:
    """Share of the time left over by steps of `step_s` at `rate` a second."""
    return min(1.0, max(0.0, 1 - rate * step_s))


def utilisation(steps: int, step_s: float, *, wall_s: float) -> float:
    """AU of MLPerf Storage: compute time by total time."""
    return min(1.0, steps * step_s / wall_s) if wall_s > 0 else float("nan")


def _bounds(profile: Profile, threads: int) -> dict[str, float]:
    bounds = {"the producers": threads / profile.batch_s if profile.batch_s else float("inf")}
    if profile.step_s:
        bounds["the step"] = 1 / step_beside(profile, threads, rate=0.0)
    if profile.cpu_s:
        bounds["the cores"] = profile.cores / profile.cpu_s
    if profile.gil_s:
        bounds["the interpreter lock"] = 1 / profile.gil_s
    return bounds


def _live_bounds(profile: Profile, threads: int) -> dict[str, float]:
    """From runs beside the real step: what the cores carry then, and where more threads have stopped helping."""
    few, many = _ends(profile)
    bounds = {"the producers": threads * few.rate / few.threads}
    if profile.step_s:
        bounds["the step"] = 1 / (BESIDE * profile.step_s)
    if _saturated(few, many):
        bounds["the cores and the interpreter lock"] = _saturated_rate(few, many, threads=threads)
    return bounds


def _ends(profile: Profile) -> tuple[LivePoint, LivePoint]:
    return min(profile.live, key=lambda p: p.threads), max(profile.live, key=lambda p: p.threads)


def _saturated(few: LivePoint, many: LivePoint) -> bool:
    return many.rate < SATURATED * few.rate * many.threads / few.threads


def _saturated_rate(few: LivePoint, many: LivePoint, *, threads: int) -> float:
    """Between the two points, and beyond them constant; but what fell with more threads goes on falling."""
    if threads <= many.threads or many.rate >= few.rate:
        return _between(few, many, threads=threads, values=(few.rate, many.rate))
    doublings = math.log2(threads / many.threads)
    fall = (few.rate - many.rate) / math.log2(many.threads / few.threads)
    return max(many.rate / 2, many.rate - fall * doublings)


def _between(few: LivePoint, many: LivePoint, *, threads: int, values: tuple[float, float]) -> float:
    """Linear in the logarithm of the threads, and constant outside."""
    return float(np.interp(math.log(threads), (math.log(few.threads), math.log(many.threads)), values))
