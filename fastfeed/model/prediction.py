"""Prediction of a feed's speed with an interval, from what was measured of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastfeed.model.simulate import simulate
from fastfeed.model.workload import SWITCH_S, Outcome, Producers, Workload

# Error of the model itself, beside that of what was measured: nine tenths of the cells of
# bench/evidence/bench.md lie within it.
MODEL_ERROR = 0.1
RESAMPLES, FEW_STEPS = 4, 300
MAX_FITTED = 4.0  # contention, or factor of a cost
FIT_CUTS = 12
EXPLAINED = MODEL_ERROR**2 / 10  # misfit of live runs that need no fit


@dataclass(frozen=True)
class LivePoint:
    """Result of a short run of the real loop: steps/s, and starvation (0 to 1)."""

    producers: Producers
    rate: float
    starvation: float


@dataclass(frozen=True)
class Prediction:
    """Steps/s with their interval, the expected starvation (0 to 1), and the limit in words."""

    rate: float
    low: float
    high: float
    starvation: float
    limit: str


def predict(workload: Workload, producers: Producers) -> Prediction:
    """Return the prediction for `producers`.

    The interval is a bootstrap over the observed batches and steps, widened by the model's error.
    """
    if len(workload.batches) == len(workload.steps) == 1:  # there is nothing to draw from
        found, seeds = simulate(workload, producers, steps=2 * FEW_STEPS), 0
    else:
        found, seeds = simulate(workload, producers), RESAMPLES
    rates = [
        simulate(resampled(workload, seed=seed), producers, steps=FEW_STEPS, seed=seed).rate
        for seed in range(seeds)
    ]
    low = min((found.rate, *rates)) * (1 - MODEL_ERROR)
    high = max((found.rate, *rates)) * (1 + MODEL_ERROR)
    return Prediction(found.rate, low, high, found.starvation, found.limit)


def resampled(workload: Workload, *, seed: int) -> Workload:
    """Return the workload with as many batches and steps, drawn from its own."""
    rng = np.random.default_rng(seed)
    batches, steps = (
        rows[rng.integers(0, len(rows), len(rows))] for rows in (workload.batches, workload.steps)
    )
    return replace(workload, batches=batches, steps=steps)


def calibrated(workload: Workload, live: Sequence[tuple[Workload, LivePoint]]) -> dict[str, Any]:
    """Return the contention, or the turns at the lock, that explain live runs, as a field of the
    workload; {} if they need no fit.

    Each live run comes with the workload of its setting.
    """

    def total(**fields: Any) -> float:
        runs = [(replace(one, **fields), point) for one, point in live]
        return sum(misfit(simulate(one, p.producers, steps=FEW_STEPS), p) for one, p in runs)

    if total() <= EXPLAINED:
        return {}
    # Steps have no time for more turns.
    turns = max(1 / point.rate for _, point in live) / (workload.turn_s or SWITCH_S)
    fits = [
        {"contention": least(lambda value: total(contention=value), MAX_FITTED)},
        {"turns": least(lambda value: total(turns=value), turns)},
    ]
    return min(fits, key=lambda fields: total(**fields))


def misfit(outcome: Outcome, point: LivePoint) -> float:
    """Return the squared error of a simulated rate, by its logarithm, and of its starvation."""
    lost = outcome.starvation - point.starvation
    return math.log(outcome.rate / point.rate) ** 2 + lost**2


def least(function: Callable[[float], float], most: float) -> float:
    """Return where the function is least between 0 and `most`, by its golden section (Kiefer,
    1953)."""
    ratio = (math.sqrt(5) - 1) / 2
    low, high = 0.0, most
    left, right = high - ratio * most, low + ratio * most
    at_left, at_right = function(left), function(right)
    for _ in range(FIT_CUTS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = function(right)
    return (low + high) / 2
