"""Prediction of a feed's speed with an interval, from what was measured of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from fastfeed.model.simulate import simulate
from fastfeed.model.workload import Outcome, Producers, Workload

# Error of the model itself, beside that of what was measured: nine tenths of the cells of
# docs/fastfeed-bench.md lie within it.
MODEL_ERROR = 0.1
RESAMPLES, RESAMPLED_STEPS = 4, 300
MAX_CONTENTION, MAX_TURNS = 2.0, 12.0  # of a fit
FIT_CUTS, FIT_ROUNDS = 5, 2
MAX_ERROR = 1e-3  # squared, of a workload that explains its live runs as it is


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
    found = simulate(workload, producers)
    rates = [
        simulate(resampled(workload, seed=seed), producers, steps=RESAMPLED_STEPS, seed=seed).rate
        for seed in range(RESAMPLES)
    ]
    low = min(found.rate, *rates) * (1 - MODEL_ERROR)
    high = max(found.rate, *rates) * (1 + MODEL_ERROR)
    return Prediction(found.rate, low, high, found.starvation, found.limit)


def resampled(workload: Workload, *, seed: int) -> Workload:
    """Return the workload with as many batches and steps, drawn from its own."""
    rng = np.random.default_rng(seed)
    batches, steps = (
        rows[rng.integers(0, len(rows), len(rows))] for rows in (workload.batches, workload.steps)
    )
    return replace(workload, batches=batches, steps=steps)


def calibrated(workload: Workload, live: Sequence[tuple[Workload, LivePoint]]) -> Workload:
    """Return the workload with the contention and turns at the lock that explain live runs best.

    Each live run comes with the workload of its setting.
    """

    def error(contention: float, turns: float) -> float:
        runs = [(replace(w, contention=contention, turns=turns), point) for w, point in live]
        return math.fsum(_error(run, point) for run, point in runs)

    contention, turns = workload.contention, workload.turns
    for _ in range(FIT_ROUNDS if error(contention, turns) > MAX_ERROR else 0):
        contention = _least(partial(error, turns=turns), MAX_CONTENTION)
        turns = _least(partial(error, contention), MAX_TURNS)
    return replace(workload, contention=contention, turns=turns)


def _error(workload: Workload, point: LivePoint) -> float:
    found: Outcome = simulate(workload, point.producers, steps=RESAMPLED_STEPS)
    return math.log(found.rate / point.rate) ** 2 + (found.starvation - point.starvation) ** 2


def _least(function: Callable[[float], float], most: float) -> float:
    """Return where the function is least between 0 and `most`, by golden section."""
    ratio = (math.sqrt(5) - 1) / 2
    low, high, one, other = 0.0, most, (1 - ratio) * most, ratio * most
    at_one, at_other = function(one), function(other)
    for _ in range(FIT_CUTS):
        if at_one <= at_other:
            high, other, at_other = other, one, at_one
            one = high - ratio * (high - low)
            at_one = function(one)
        else:
            low, one, at_one = one, other, at_other
            other = low + ratio * (high - low)
            at_other = function(other)
    return one if at_one <= at_other else other
