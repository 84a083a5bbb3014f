"""The bookkeeping of a shuffle pool: records that have arrived, may be drawn, and are drawn."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from fastfeed.engine.shuffle.storage import Slots


class DrawnBatch(NamedTuple):
    """A batch that was drawn.

    Its `slots` move to the end of the pool, and `others` take their `places`. `free` is the number
    of free slots before.
    """

    slots: Slots
    places: Slots
    others: Slots
    free: int


class DrawState(NamedTuple):
    """The state that a draw changes.

    `moved` records of the epoch have become drawable, and `drawable` of them are left. A draw needs
    `ready` drawable records. The pool is filled up to `goal` records in all, which does not start
    again with an epoch. `drawn` is empty, or has the chosen places in the pool, and then a
    DrawnBatch.
    """

    moved: int
    drawable: int
    ready: int
    goal: int
    drawn: list[Any]


class EpochLedger:
    """The records of an epoch, by slot, in order of arrival. `begun` is True after the first."""

    def __init__(self, *, begun: bool = False, ended: bool = False) -> None:
        self.rows = 0  # records that have arrived
        self.begun = begun
        self.ended = ended
        # parts, each after the number of records before it
        self._arrived: deque[tuple[int, Slots]] = deque()

    def add(self, slots: Slots) -> None:
        """Add records that have arrived."""
        self._arrived.append((self.rows, slots))
        self.rows += len(slots)
        self.begun = True

    def end(self) -> None:
        """Note that the epoch has no more records."""
        self.ended = True

    def oldest(self, moved: int, count: int) -> list[Slots]:
        """Return at most `count` records after the first `moved`, which are forgotten."""
        arrived, found, end = self._arrived, [], moved + count
        while arrived and arrived[0][0] + len(arrived[0][1]) <= moved:
            arrived.popleft()
        for start, slots in arrived:
            if start >= end:
                break
            found.append(slots[max(0, moved - start) : end - start])
        return found
