"""The protocol of the stages that batches pass on their way from the producers to the sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from fastfeed.core.batch import Batch


class Stage(Protocol):
    """One stage of a feed.

    The feed drives the chain: it hands a stage what the stage before it gave, and takes batches
    out. No stage knows another one, or the feed.
    """

    def wants(self, at_hand: bool) -> bool:
        """Return True if the stage takes in more before its next batch. `at_hand`: there is input
        that need not be waited for."""

    def take_in(self, batch: Batch | None, origin: Any) -> None:
        """Take in a batch, or None for an item without records. `origin` is what the stage needs to
        know beside the records: the item that the batch was, or the state after it."""

    def end_epoch(self, *, last: bool) -> None:
        """Note the end of an epoch's input. `last`: no epoch of this run follows."""

    def flush(self) -> None:
        """Note the end of all input."""

    def pop(self) -> Batch | None:
        """Return the next batch, or None where an epoch (or a run) ends."""

    def state(self, state: dict[str, Any], pack: Callable[[Any], Any]) -> dict[str, Any]:
        """Return the state of the feed after the batch that was popped last, given that of the
        stages before this one. `pack` makes text of where the records of a shuffle's pool came
        from."""
        ...
