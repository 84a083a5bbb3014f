"""A feed as it was observed or as it may be changed, and what changes of it gain."""

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

    `copying`, `pickling`, `reading` and `crowded` are the shares of a batch's work in copies, in
    pickling, for what is read from disks, and lost to pools of too many threads. `converted_s` is
    the part of the hand-over in which the training thread converts a batch. `retouched` is the
    share of a step in which it touches memory again that its loader made it return. `tail`: few
    batches are slow. `overcounted`: see `Reproduction`.
    """

    workload: Workload
    producers: Producers
    copying: float = 0.0
    pickling: float = 0.0
    reading: float = 0.0
    crowded: float = 0.0
    converted_s: float = 0.0
    retouched: float = 0.0
    tail: bool = False
    overcounted: tuple[str, ...] = ()

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

    def work(self, factor: float) -> FeedModel:
        """Return it with what producers do on the cores times a factor."""
        return self.batch(lock=factor, native=factor)

    def with_(self, **fields: Any) -> FeedModel:
        """Return it with other fields of its workload."""
        return replace(self, workload=replace(self.workload, **fields))

    @property
    def other_work(self) -> float:
        """Share of a batch's work that is neither bytecode nor native code of its own."""
        return min(1.0, self.copying + self.pickling + self.reading)

    @property
    def usual_wait(self) -> FeedModel:
        """The feed without the slow batches of its tail."""
        if not self.tail:
            return self
        waits = self.workload.batch("wait")
        late = rows_of(BATCH_PARTS, wait=np.maximum(0.0, waits - np.median(waits)))
        return self.with_(batches=self.workload.batches - late)

    def stalled(self, factor: float) -> FeedModel:
        """Return it with stalls by the starts of epochs and by slow batches times a factor."""
        batches, usual = self.workload.batches, self.usual_wait.workload.batches
        start_s = factor * self.workload.epoch_start_s
        return self.with_(batches=usual + factor * (batches - usual), epoch_start_s=start_s)


Change = Callable[[FeedModel], FeedModel]


class ObservedFeed:
    """The feed as it is, and the gains of its changes."""

    def __init__(
        self, observed: FeedModel, figures: Figures, *, pure: bool, like: ObservedFeed | None = None
    ) -> None:
        """`pure`: the steps were measured without their producers. `like`: a longer watch of the
        same feed, whose fits hold here, too."""
        rate, starvation = figures.steps_per_second, figures.starvation
        self._point = LivePoint(observed.producers, rate, starvation)
        self.fits: tuple[Change, ...] = like.fits if like is not None else ()
        if like is None:
            # Observed steps contain what they lose to producers, which the simulation adds again.
            if not pure and observed.run().rate < rate:
                self._fit(observed, FeedModel.step, most=1.0)
            if observed.workload.epoch_start_s > 0 or observed.tail:
                self._fit(observed, FeedModel.stalled, most=MAX_FITTED)
            found = self._fitted(observed).workload
            fields = calibrated(found, [(found, self._point)])
            self.fits = (*self.fits, lambda feed: feed.with_(**fields))
        self.now = self._fitted(observed)
        outcome = self.now.run()
        self.rate = outcome.rate
        errors = outcome.rate / rate - 1, outcome.starvation - starvation
        self.reproduction = Reproduction(*errors, observed.overcounted)
        self._rates = [self.now.run(seed).rate for seed in range(RESAMPLES if like is None else 0)]

    def _fitted(self, feed: FeedModel) -> FeedModel:
        for fit in self.fits:
            feed = fit(feed)
        return feed

    def _fit(
        self, observed: FeedModel, change: Callable[[FeedModel, float], FeedModel], *, most: float
    ) -> None:
        """Fit the factor of a change to what was observed."""
        feed = self._fitted(observed)
        factor = least(lambda one: misfit(change(feed, one).run(), self._point), most)
        self.fits = (*self.fits, lambda other: change(other, factor))

    def lost(self, counterfactual: Change) -> float:
        """Return the share (0 to 1) of the time that what the counterfactual removes takes."""
        return max(0.0, 1 - self.rate / counterfactual(self.now).run().rate)

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
        return speedup, (float(min(found)) * (1 - error), float(max(found)) * (1 + error))
