"""A feed as it was observed or as it may be changed, and the gains of changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fastfeed.diagnose.diagnosis import Figures, Reproduction
from fastfeed.model.prediction import MODEL_ERROR, RESAMPLES, LivePoint, calibrated, resampled
from fastfeed.model.simulate import simulate
from fastfeed.model.workload import BATCH_PARTS, STEP_PARTS, Outcome, Producers, Workload

STEPS = 300  # of a simulation
HALVINGS = 6  # of an interval, to find the step alone


@dataclass(frozen=True)
class FeedModel:
    """A workload and its producers, as observed or as changed.

    `retouched` is the share of a step in which it touches memory again that its loader made it
    return; another loader saves it. `overcounted`: see `Reproduction`.
    """

    workload: Workload
    producers: Producers
    retouched: float = 0.0
    overcounted: tuple[str, ...] = ()

    def run(self, seed: int | None = None) -> Outcome:
        """Simulate it; with a seed, simulate what might as well have been observed."""
        workload = self.workload if seed is None else resampled(self.workload, seed=seed)
        return simulate(workload, self.producers, steps=STEPS, seed=seed or 0)

    def batch(self, every: float = 1.0, **parts: float) -> FeedModel:
        """Return it with `every` part of a batch, or some, times a factor."""
        factors = {part: max(0.0, parts.get(part, every)) for part in BATCH_PARTS}
        return replace(self, workload=self.workload.scaled(batch=factors))

    def step(self, every: float = 1.0, **parts: float) -> FeedModel:
        """Return it with `every` part of a step but its pause, or some, times a factor."""
        factors = {"pause": 1.0} | dict.fromkeys(STEP_PARTS[:-1], every) | parts
        return replace(self, workload=self.workload.scaled(step=factors))

    def reloaded(self) -> FeedModel:
        """Return it with another loader."""
        return replace(self.step(1 - self.retouched), retouched=0.0)

    def with_(self, **fields: Any) -> FeedModel:
        """Return it with other fields of its workload."""
        return replace(self, workload=replace(self.workload, **fields))


Change = Callable[[FeedModel], FeedModel]


def without_input(feed: FeedModel) -> FeedModel:
    """Return the feed with its input always at hand."""
    return feed.reloaded().batch(0.0).with_(epoch_batches=0)


def _without_contention(observed: FeedModel, point: LivePoint) -> FeedModel:
    """Return the feed with steps as short as they must be alone to be so fast beside producers.

    Observed steps contain what they lose to producers, which the simulation adds again. If the
    simulation waits for input for longer than observed, its batches are too slow, not its steps.
    """
    found = observed.run()
    low, high = 0.0, 1.0
    for _ in range(HALVINGS if found.rate < point.rate else 0):
        middle = (low + high) / 2
        faster = observed.step(middle).run()
        enough = faster.rate >= point.rate or faster.starvation > point.starvation
        low, high = (middle, high) if enough else (low, middle)
    return observed.step(high)


class ObservedFeed:
    """The feed as it is, and the gains of its changes."""

    def __init__(self, observed: FeedModel, figures: Figures, *, pure: bool) -> None:
        """`pure`: the steps were measured without their producers."""
        rate, starvation = figures.steps_per_second, figures.starvation
        point = LivePoint(observed.producers, rate, starvation)
        if not pure:
            observed = _without_contention(observed, point)
        workload = calibrated(observed.workload, [(observed.workload, point)])
        self.now = replace(observed, workload=workload)
        outcome = self.now.run()
        self.rate = outcome.rate
        errors = outcome.rate / rate - 1, outcome.starvation - starvation
        self.reproduction = Reproduction(*errors, observed.overcounted)
        self._rates = [self.now.run(seed).rate for seed in range(RESAMPLES)]

    def gain(self, *changes: Change) -> tuple[float, tuple[float, float]]:
        """Return the speed-up by the first change, and its interval.

        Further changes say how little and how much the first one may be.
        """
        first, *others = [change(self.now) for change in changes]
        speedup = first.run().rate / self.rate
        found = [first.run(seed).rate / rate for seed, rate in enumerate(self._rates)]
        found += [speedup, *(other.run().rate / self.rate for other in others)]
        wrong = self.reproduction
        error = max(MODEL_ERROR, abs(wrong.rate_error), abs(wrong.starvation_error))
        low, high = min(found) * (1 - error), max(found) * (1 + error)
        return max(1.0, speedup), (max(1.0, low), max(1.0, high))
