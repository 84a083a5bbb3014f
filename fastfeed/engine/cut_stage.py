"""The stage that keeps the order: batches as they were produced, or cut to another size."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from fastfeed.core.batch import Batch
from fastfeed.core.collate import PassThrough, Rebatcher, SizeChecker
from fastfeed.core.position import Position
from fastfeed.engine.stage import Stage
from fastfeed.producers.reorder import ProducedBatch

Cutter = SizeChecker | Rebatcher | PassThrough


class CutStage(Stage):
    """Batches in the order of their items, cut by `cutter`."""

    def __init__(self, cutter: Cutter | None = None) -> None:
        self._cutter: Cutter = cutter or PassThrough()
        self.ready: deque[Batch] = deque()
        self._position = Position(0)

    def bind(self, position: Position, streams: Sequence[int]) -> None:
        """Record in `position` what arrives, before the first `take_in`."""
        self._position = position

    def recut(self, cutter: Cutter, *, ended: bool) -> None:
        """Cut all batches with `cutter`, those that are ready included; `ended`: there is no more
        input."""
        early, self._cutter = list(self.ready), cutter
        self.ready.clear()
        for batch in early:
            self.ready.extend(cutter.push(batch))
        if ended:
            self.flush()

    def wants(self, at_hand: bool) -> bool:
        """Return True if no batch is ready."""
        return not self.ready

    def take_in(self, batch: Batch | None, origin: ProducedBatch) -> None:
        """Cut the records of one item. Raise SpecError where batches stay as produced and their
        leading dimension changes."""
        rows = 0 if batch is None else batch.rows
        self._position.arrived(origin.stream, origin.number, rows=rows)
        if batch is not None and rows:
            self.ready.extend(self._cutter.push(batch, origin.stream, place=origin.place))

    def end_epoch(self, *, last: bool) -> None:
        """Release the remainder, unless batches may straddle epochs."""
        dropped = self.dropped
        self.ready.extend(self._cutter.flush() if last else self._cutter.end_epoch())
        self._position.dropped(self.dropped - dropped)
        self._position.end_epoch()

    def flush(self) -> None:
        """Release the remainder."""
        self.ready.extend(self._cutter.flush())

    def pop(self) -> Batch | None:
        """Return the next batch."""
        return self.ready.popleft()

    @property
    def dropped(self) -> int:
        """Records that were left out because they did not fill a batch."""
        return self._cutter.dropped

    def state(self, state: dict[str, Any], pack: Callable[[Any], Any]) -> dict[str, Any]:
        """Return the state with the size of each stream's batches, where they stay as produced."""
        sizes = sorted(self._cutter.sizes.items()) if isinstance(self._cutter, SizeChecker) else []
        return {**state, "sizes": {str(stream): size for stream, size in sizes}}
