"""The basis of recommendations."""

from __future__ import annotations

from dataclasses import dataclass

from fastfeed.diagnose.diagnosis import Figures, Recommendation
from fastfeed.diagnose.evidence import Evidence
from fastfeed.diagnose.judge.figures import StepTable
from fastfeed.diagnose.judge.observed_feed import Change, FeedModel, ObservedFeed
from fastfeed.diagnose.judge.producer_profile import ProducerProfile

MIN_GAIN = 1.03  # a smaller speed-up is no gain


@dataclass(frozen=True)
class Facts:
    """The basis of a recommendation."""

    evidence: Evidence
    table: StepTable
    figures: Figures
    producers: ProducerProfile | None
    feed: ObservedFeed

    def recommend(
        self, text: str, knob: tuple[str, str], *changes: Change, why: str = ""
    ) -> Recommendation:
        """Return a change of the feed with its gain; further changes are its least and greatest
        effect."""
        speedup, interval = self.feed.gain(*changes)
        return Recommendation(text, *knob, speedup, interval, why)

    def without(self, share: float) -> Change:
        """Return the change that takes this share of the loop's time from its steps."""
        removed_s = share * self.table.seconds / max(1, self.figures.steps)
        step_s = float((self.table.inside + self.table.host).mean())
        factor = max(0.0, 1 - removed_s / max(1e-9, step_s))

        def change(feed: FeedModel) -> FeedModel:
            return feed.step(factor)

        return change
