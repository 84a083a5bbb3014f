"""The arithmetic of a feed: what a batch costs and how many producers there are -> steps/s and starvation.

The one model behind the benchmark's prediction and its advice. Pure functions; seconds and counts only. The bounds
are the operational laws of Denning and Buzen (1978): no resource serves more than its time allows, and N producers
make at most N batches in the time of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# What a range must cover: threads share caches and memory, and a step beside producers is not the step alone. The
# widths are the errors that were seen, see docs/benchmark.md.
SPREAD_ALONE = (0.12, 0.03)
SPREAD_LIVE = (0.17, 0.10)
INPUT_BOUND = 0.05  # starvation from which a feed counts as input-bound
STRONGLY_BOUND = 0.20


@dataclass(frozen=True)
class LivePoint:
    """A short run of the real loop with `threads` producers: batches/s, and the core seconds of one batch and step."""

    threads: int
    rate: float
    cpu_s: float


@dataclass(frozen=True)
class Profile:
    """What one batch costs: `batch_s` of wall time in a producer alone, of which `cpu_s` on a core and `gil_s` with
    the interpreter lock held; and what one step costs when its input is cached (0: there is no step)."""

    batch_s: float
    cpu_s: float
    gil_s: float
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
    bounds = _bounds(profile, threads)
    limit = min(bounds, key=lambda name: bounds[name])
    rate = bounds[limit]
    below, above = SPREAD_LIVE if profile.live else SPREAD_ALONE
    high = min(rate * (1 + above), 1 / profile.step_s if profile.step_s else float("inf"))
    return Prediction(rate, rate * (1 - below), high, starvation(rate, profile.step_s), limit)


def starvation(rate: float, step_s: float) -> float:
    """Share of the time left over by steps of `step_s` at `rate` a second."""
    return min(1.0, max(0.0, 1 - rate * step_s))


def utilisation(steps: int, step_s: float, *, wall_s: float) -> float:
    """AU of MLPerf Storage: compute time by total time."""
    return min(1.0, steps * step_s / wall_s) if wall_s > 0 else float("nan")


def threads_needed(profile: Profile, candidates: Sequence[int]) -> int:
    """The smallest candidate after which more threads promise less than 5 %."""
    best = max(predict(profile, n).rate for n in candidates)
    return min(n for n in candidates if predict(profile, n).rate >= 0.95 * best)


def _bounds(profile: Profile, threads: int) -> dict[str, float]:
    bounds = {"producers": threads / profile.batch_s if profile.batch_s else float("inf")}
    if profile.step_s:
        bounds["step"] = 1 / profile.step_s
    if profile.cpu_s:
        bounds["cores"] = profile.cores / profile.cpu_s
    if profile.gil_s:
        bounds["interpreter lock"] = 1 / profile.gil_s
    if profile.live:
        bounds.update(_live_bounds(profile, threads))
    return bounds


def _live_bounds(profile: Profile, threads: int) -> dict[str, float]:
    """From runs beside the real step: what the cores carry then, and where more threads have stopped helping."""
    few, many = min(profile.live, key=lambda p: p.threads), max(profile.live, key=lambda p: p.threads)
    bounds = {"producers": threads * few.rate / few.threads, "cores": profile.cores / many.cpu_s}
    scaled = many.threads / few.threads * few.rate
    if many.rate < 0.9 * scaled and many.rate * profile.step_s < 0.9:
        bounds["what more threads add"] = many.rate
    return bounds
