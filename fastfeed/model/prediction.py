"""Prediction of steps/s and starvation from the cost of a batch and the number of producers.

This is the one model behind the benchmark's prediction and its advice. It consists of pure
functions of seconds and counts. The bounds are the operational laws of Denning and Buzen (1978): no
resource serves more than its time allows, and N producers make at most N batches in the time of
one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

# What the range of a prediction must cover: threads share caches and memory, a step beside
# producers costs more than the step alone, and machines drift. The widths (below, above) are the
# measured errors, see docs/fastfeed-bench.md.
SPREAD_ALONE = (0.12, 0.12)
SPREAD_LIVE = (0.17, 0.20)
# measured: with many producers the wait for the interpreter lock is that share longer than with one
GIL_CROWDING = 0.5
# a step beside a busy feed takes that multiple of the pure step: measured 1.04 to 1.23
STEP_BESIDE_FEED = 1.1
SATURATION_GAIN = 0.9  # below this share of a proportional gain, more threads no longer help
LOCK_LIMIT = "the interpreter lock"  # the limit that worker processes lift
INPUT_BOUND = 0.05  # starvation from which a feed counts as input-bound


@dataclass(frozen=True)
class Producers:
    """The producers of a feed: `threads` in each of `processes` worker processes.

    With 0 processes, the threads run in the trainer.
    """

    threads: int
    processes: int = 0

    @property
    def count(self) -> int:
        """The total number of producers."""
        return self.threads * max(1, self.processes)

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        if not self.processes:
            return threads
        return f"{self.processes} process{'es' if self.processes > 1 else ''} x {threads}"


@dataclass(frozen=True)
class LivePoint:
    """Result of a short run of the real loop.

    `rate` is in batches/s, `cpu_s` the core seconds of one batch and one step together, and
    `step_s` the wall seconds of one step without its wait.
    """

    threads: int
    rate: float
    cpu_s: float
    step_s: float
    processes: int = 0


@dataclass(frozen=True)
class Profile:
    """The cost of one batch and one step, in seconds.

    `batch_s` is the wall time of a batch in a producer alone, `cpu_s` the part of it on a core, and
    `gil_s` the part with the interpreter lock held. Another thread waits `gil_wait_s` for that lock
    meanwhile. With cached input a step takes `step_s` of wall time (0: there is no step) and
    `step_cpu_s` of core time.
    """

    batch_s: float
    cpu_s: float
    gil_s: float
    gil_wait_s: float
    step_s: float
    cores: int
    live: tuple[LivePoint, ...] = ()
    step_cpu_s: float = 0.0


@dataclass(frozen=True)
class Prediction:
    """Steps/s with their range, the expected starvation (0 to 1), and the limiting resource."""

    rate: float
    low: float
    high: float
    starvation: float
    limit: str


def predict(profile: Profile, producers: Producers) -> Prediction:
    """Return the prediction for `producers`.

    The rate is the smallest of what the producers, the cores, the interpreter locks and the step
    allow.
    """
    live = _live(profile, producers)
    bounds = _live_bounds(profile, producers, live=live) if live else _bounds(profile, producers)
    limit = min(bounds, key=lambda name: bounds[name])
    rate = bounds[limit]
    below, above = SPREAD_LIVE if live else SPREAD_ALONE
    starved = starvation(rate, step_beside(profile, producers, rate=rate))
    return Prediction(rate, rate * (1 - below), rate * (1 + above), starved, limit)


def step_beside(profile: Profile, producers: Producers, *, rate: float) -> float:
    """Return the seconds of a step beside the producers.

    A step that released the interpreter lock waits for it once when it returns, unless the
    producers have locks of their own. If live points exist, a step costs what it cost there. The
    less it has to wait, the closer it comes to the pure step.
    """
    if not profile.step_s:
        return 0.0
    live = _live(profile, producers)
    if live is None:
        crowd = 0.0 if producers.processes else 1 + GIL_CROWDING * (1 - 1 / producers.threads)
        return profile.step_s + profile.gil_wait_s * crowd
    few, many = live.few, live.many
    if live.saturated:
        at_once = _at_once(profile, producers)
        # the share of waiting stays constant, even if the rate falls
        if at_once > live.many_at_once:
            return many.step_s * many.rate / rate
        return live.between(few.step_s, many.step_s, at_once=at_once)
    pure_s = STEP_BESIDE_FEED * profile.step_s
    loads = [few.rate * pure_s, many.rate * pure_s, 1.0]
    return float(np.interp(rate * pure_s, loads, [few.step_s, many.step_s, pure_s]))


def starvation(rate: float, step_s: float) -> float:
    """Return the share of the time that is not used by steps of `step_s` s at `rate` per s."""
    return min(1.0, max(0.0, 1 - rate * step_s))


def utilisation(steps: int, step_s: float, *, wall_s: float) -> float:
    """Return AU as MLPerf Storage defines it: compute time / total time."""
    return min(1.0, steps * step_s / wall_s) if wall_s > 0 else float("nan")


def _bounds(profile: Profile, producers: Producers) -> dict[str, float]:
    bounds = {
        "the producers": producers.count / profile.batch_s if profile.batch_s else float("inf")
    }
    if profile.step_s:
        bounds["the step"] = 1 / step_beside(profile, producers, rate=0.0)
    if profile.cpu_s:
        bounds["the cores"] = _cores_bound(profile)
    if profile.gil_s:  # one lock for each process
        bounds[LOCK_LIMIT] = max(1, producers.processes) / profile.gil_s
    return bounds


def _cores_bound(profile: Profile) -> float:
    """Return the steps/s that the cores allow: each step needs a batch, and both need the cores."""
    return profile.cores / (profile.cpu_s + profile.step_cpu_s)


def _live_bounds(profile: Profile, producers: Producers, *, live: _Live) -> dict[str, float]:
    """Return the bounds measured in runs beside the real step.

    They show what the cores carry then, and from where on more producers do not help.
    """
    bounds = {"the producers": producers.count * live.one_rate}
    if profile.step_s:
        bounds["the step"] = 1 / (STEP_BESIDE_FEED * profile.step_s)
    at_once = _at_once(profile, producers)
    if not producers.processes:
        if live.saturated:
            bounds["the cores and the interpreter lock"] = live.saturated_rate(at_once)
        return bounds
    bounds[LOCK_LIMIT] = at_once * live.one_rate
    if profile.cpu_s:
        bounds["the cores"] = _cores_bound(profile)
    # Processes do not wait for each other's locks: their rates add up until the cores are
    # saturated.
    if live.saturated:
        rising = live.many.rate >= live.few.rate
        carried = live.many.rate if rising else live.saturated_rate(at_once)
        bounds["the cores"] = min(bounds.get("the cores", float("inf")), carried)
    return bounds


def _at_once(profile: Profile, producers: Producers) -> float:
    """Return the number of producers that can work at the same time.

    Producers of one worker process share its interpreter lock. Threads of the trainer count in
    full, because live points already contain the effect of its lock on them and on the step.
    """
    if not producers.processes or not profile.gil_s:
        return producers.count
    return producers.processes * min(producers.threads, profile.batch_s / profile.gil_s)


@dataclass(frozen=True)
class _Live:
    """The live points with the fewest and the most producers, and their effective counts.

    `few_at_once` and `many_at_once` are the numbers of producers that can work at the same time.
    """

    few: LivePoint
    many: LivePoint
    few_at_once: float
    many_at_once: float

    @property
    def one_rate(self) -> float:
        """Batches/s of one producer beside the step."""
        return self.few.rate / self.few_at_once

    @property
    def saturated(self) -> bool:
        """True if more producers no longer helped."""
        return self.many.rate < SATURATION_GAIN * self.one_rate * self.many_at_once

    def saturated_rate(self, at_once: float) -> float:
        """Return the rate between the two points; beyond them it is constant.

        If the rate fell with more producers, it continues to fall.
        """
        few, many = self.few.rate, self.many.rate
        if at_once <= self.many_at_once or many >= few:
            return self.between(few, many, at_once=at_once)
        doublings = math.log2(at_once / self.many_at_once)
        fall = (few - many) / math.log2(self.many_at_once / self.few_at_once)
        return max(many / 2, many - fall * doublings)

    def between(self, few: float, many: float, *, at_once: float) -> float:
        """Interpolate linearly in the logarithm of the producers; constant outside."""
        ends = (math.log(self.few_at_once), math.log(self.many_at_once))
        return float(np.interp(math.log(at_once), ends, (few, many)))


def _live(profile: Profile, producers: Producers) -> _Live | None:
    """Return the live points of the same kind: threads, or processes."""
    kind = [p for p in profile.live if (p.processes > 0) == (producers.processes > 0)]
    if not kind:
        return None
    sizes = [(_at_once(profile, Producers(p.threads, p.processes)), p) for p in kind]
    (few_at_once, few), (many_at_once, many) = (
        min(sizes, key=itemgetter(0)),
        max(sizes, key=itemgetter(0)),
    )
    return _Live(few, many, few_at_once, many_at_once)
