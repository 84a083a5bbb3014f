"""A feed's augmenting stage: what is in flight is not had yet, and states are those behind the last
batch that was."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastfeed.core.batch import Batch, BatchSpec
from fastfeed.engine.shuffle_stage import ShuffleStage
from fastfeed.errors import FeedError, FeedStopped, StateError
from fastfeed.shuffle.storage import packed

if TYPE_CHECKING:
    from fastfeed.engine.feed import Feed


class AugmentStage:
    """Between a feed of packed batches and whoever takes augmented ones from it."""

    def __init__(self, feed: Feed) -> None:
        # a third of the time that `import fastfeed` would take
        from fastfeed.engine.dali_stage import Stage

        augment = feed.options.augment
        assert augment is not None  # options.packed says so
        feed = weakref.proxy(feed)  # which holds this
        self.stage = Stage(
            augment,
            feed.options,
            row=feed.consumed,
            elsewhere=lambda: feed.snapshot().produced.errors,
        )
        # packed records that have gone into the batch that was taken last, or were left out before
        # it
        self.rows = 0
        # whether batches are augmented behind the feed, by whoever takes from it
        self.outside = False
        self._feed = feed
        # the state behind the last batch that came through a shuffle
        self._had: dict[str, Any] | None = None

    @property
    def spec(self) -> BatchSpec:
        """What every augmented batch is; known once one was taken, or looked at."""
        assert self.stage.spec is not None
        return self.stage.spec

    def look(self, batch: Batch) -> None:
        """Learns the spec from a packed batch that stays to be taken."""
        try:
            self.stage.learn(batch, self._feed.made_spec)
        except FeedError as error:
            self._feed.fail(error)

    def take(self, shuffled: ShuffleStage | None) -> Batch | None:
        """The next augmented batch, or None after the last of a run."""
        feed = self._feed

        def taken() -> tuple[Batch, Any] | None:
            if shuffled is not None and self._had is None and not shuffled.empty:
                self._had = feed.raw_state(_as_they_are)
            batch = feed.pull()
            if batch is None or shuffled is None:
                return None if batch is None else (batch, None)
            shuffled.given()
            # the shuffle forgets a batch when the next one is drawn
            return batch, feed.raw_state(_as_they_are)

        try:
            landed = self.stage.next(taken, lambda: feed.ready, spec=lambda: feed.made_spec)
        except FeedError as error:
            # those are about who takes
            if error is feed.error or isinstance(error, (FeedStopped, StateError)):
                raise
            feed.fail(error)
        if landed is None:
            return None
        self._had, self.rows = landed.mark, landed.rows
        return landed.batch

    def behind(
        self, take: Callable[[], Batch | None], ready: Callable[[], bool]
    ) -> Callable[[], Batch | None]:
        """Has batches be augmented that `take` makes of what the feed gives, from here on as it is,
        packed."""
        self.outside = True

        def augmented() -> Batch | None:
            landed = self.stage.next(taken, ready, spec=lambda: self._feed.made_spec)
            if landed is None:
                return None
            self.rows = landed.rows
            return landed.batch

        def taken() -> tuple[Batch, Any] | None:
            batch = take()
            return None if batch is None else (batch, None)

        return augmented

    def state(self) -> dict[str, Any]:
        """Of a feed that shuffles: behind the last batch that was had, whatever is in flight."""
        feed = self._feed
        state = feed.raw_state(_as_they_are) if self._had is None or self.stage.empty else self._had
        pool = state["pool"]
        if pool is not None:
            pool = {**pool, "origins": [packed(origins) for origins in pool["origins"]]}
        return {
            **state,
            "pool": pool,
            "batches": feed.position.batches,
            "records": feed.position.records,
        }


def _as_they_are(origins: Any) -> Any:
    """To be packed when somebody asks for the state."""
    return origins
