"""Stages that batches pass on their way from the producers to the sink."""

from __future__ import annotations

from typing import Any

from fastfeed.core.batch import Batch, BatchSpec


class Stage:
    """One stage of a feed, which takes its input from the stage before it."""

    # records of the source that were left out since the batch before the one that was taken last
    lost = 0

    def after(self, before: Stage) -> Stage:
        """Take the input from `before`; return the stage itself."""
        self._before = before
        return self

    def take(self) -> Batch | None:
        """Return the next batch, or None at the end of an epoch or a run."""
        raise NotImplementedError

    def learn(self, batch: Batch) -> None:
        """Learn the spec of the output from the first batch of the input, which is taken later."""

    @property
    def spec(self) -> BatchSpec:
        """The spec of the output; known once there was a batch."""
        raise NotImplementedError

    @property
    def ready(self) -> bool:
        """True if `take` would return at once, as far as can be known without waiting."""
        raise NotImplementedError

    @property
    def depth(self) -> int:
        """Batches inside."""
        raise NotImplementedError

    @property
    def ended(self) -> bool:
        """True if nothing is inside, and nothing will come of its own."""
        return not self.depth

    def mark(self) -> dict[str, Any] | None:
        """Return `state()` if it cannot be told later, when more batches were taken."""
        return None

    def state(self) -> dict[str, Any]:
        """Return the state of the feed after the batch that was taken last. The origins of the
        records in a shuffle's pool are arrays."""
        raise NotImplementedError
