"""A feed as it was observed or as it may be changed, and the gains of changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastfeed.diagnose.diagnosis import Figures, Reproduction
from fastfeed.model.prediction import (
    FEW_STEPS,
    MAX_FITTED,
    MODEL_ERROR,
    RESAMPLES,
    LivePoint,
    calibrated,
    least,
    misfit,
    resampled,
)
from fastfeed.model.simulate import simulate
from fastfeed.model.workload import BATCH_PARTS, STEP_PARTS, Outcome, Producers, Workload, rows_of


@dataclass(frozen=True)
class FeedModel:
    """A workload and its producers, as observed or as changed.

    `retouched` is the share of a step in which it touches memory again that its loader made it
    return; another loader saves it. `overcounted`: see `Reproduction`. `tail`: a few batches are
    slow.
    """

    workload: Workload
    producers: Producers
    retouched: float = 0.0
    overcounted: tuple[str, ...] = ()
    tail: bool = False

    def run(self, seed: int | None = None) -> Outcome:
        """Simulate it; with a seed, simulate what might as well have been observed."""
        workload = self.workload if seed is None else resampled(self.workload, seed=seed)
        # A pause or a slow batch may come once in a thousand steps, other costs are much alike.
        rare = self.tail or bool(workload.step("pause").any())
        steps = len(workload.steps) if rare else 0
        return simulate(workload, self.producers, steps=max(FEW_STEPS, steps), seed=seed or 0)

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

    @property
    def stalls(self) -> bool:
        """True if the starts of epochs, or slow batches, stall the step."""
        return self.workload.epoch_start_s > 0 or self.tail

    def stalled(self, factor: float) -> FeedModel:
        """Return it with stalls times a factor."""
        workload = self.workload
        waits = workload.batch("wait")
        usual = np.minimum(waits, np.median(waits)) if self.tail else waits
        late = rows_of(BATCH_PARTS, wait=(factor - 1) * (waits - usual))
        batches = np.maximum(workload.batches + late, 0.0)
        return self.with_(batches=batches, epoch_start_s=factor * workload.epoch_start_s)

    def with_(self, **fields: Any) -> FeedModel:
        """Return it with other fields of its workload."""
        return replace(self, workload=replace(self.workload, **fields))


Change = Callable[[FeedModel], FeedModel]


def without_input(feed: FeedModel) -> FeedModel:
    """Return the feed with its input always at hand."""
    return feed.reloaded().batch(0.0).with_(epoch_batches=0)


class ObservedFeed:
    """The feed as it is, and the gains of its changes."""

    def __init__(self, observed: FeedModel, figures: Figures, *, pure: bool) -> None:
        """`pure`: the steps were measured without their producers."""
        rate, starvation = figures.steps_per_second, figures.starvation
        point = LivePoint(observed.producers, rate, starvation)

        def fitted(change: Callable[[float], FeedModel], most: float) -> FeedModel:
            return change(least(lambda factor: misfit(change(factor).run(), point), most))

        # Observed steps contain what they lose to producers, which the simulation adds again.
        if not pure and observed.run().rate < rate:
            observed = fitted(observed.step, 1.0)
        if observed.stalls:
            observed = fitted(observed.stalled, MAX_FITTED)
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
        speedup = float(first.run().rate / self.rate)
        found = [first.run(seed).rate / rate for seed, rate in enumerate(self._rates)]
        found += [speedup, *(other.run().rate / self.rate for other in others)]
        wrong = self.reproduction
        error = max(MODEL_ERROR, abs(wrong.rate_error), abs(wrong.starvation_error))
        low, high = float(min(found)) * (1 - error), float(max(found)) * (1 + error)
        return max(1.0, speedup), (max(1.0, low), max(1.0, high))
