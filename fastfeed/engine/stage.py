"""Stages that batches pass on their way from the producers to the sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastfeed.core.batch import Batch


class Stage:
    """One stage of a feed.

    The feed drives the chain: it passes the output of one stage to the next. No stage uses another
    one, or the feed.
    """

    shuffles = False

    @property
    def holds_epoch(self) -> bool:
        """True if records of an epoch are left when its input ends."""
        return False

    @property
    def finished(self) -> bool:
        """True if every record has left."""
        return True

    def wants(self, at_hand: bool) -> bool:
        """Return True if the stage needs input before its next batch.

        `at_hand`: there is input without a wait.
        """
        raise NotImplementedError

    def take_in(self, batch: Batch | None, origin: Any) -> None:
        """Take in a batch, or None for an item without records.

        `origin` is what the stage must know in addition to the records: the item that the batch
        was, or the state after it.
        """
        raise NotImplementedError

    def end_epoch(self, *, last: bool) -> None:
        """End an epoch's input. `last`: no epoch of this run follows."""
        raise NotImplementedError

    def flush(self) -> None:
        """End all input."""

    def pop(self) -> Batch | None:
        """Return the next batch, or None at the end of an epoch or a run."""
        raise NotImplementedError

    def given(self) -> None:
        """Record that the consumer has the batch that `pop` returned."""

    def turn(self) -> bool:
        """Go on to the next epoch after `pop` has returned None; return True if there is none.

        `given` completes it.
        """
        raise NotImplementedError

    def state(self, state: dict[str, Any], pack: Callable[[Any], Any]) -> dict[str, Any]:
        """Return the state of the feed after the batch that was popped last.

        `state` is that of the stages before this one. `pack` makes text of the origins of the
        records in a shuffle's pool.
        """
        raise NotImplementedError
