"""The bookkeeping of a shuffle pool: which records have arrived, which may be drawn, and which are
drawn."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from fastfeed.shuffle.storage import Slots


class Drawn(NamedTuple):
    """A batch: its slots, which move to the end of the pool, those that take their places, and how
    many were free."""

    slots: Slots
    places: Slots
    others: Slots
    free: int


class DrawState(NamedTuple):
    """What a draw changes: how many records of the epoch have become drawable, how many of them are
    left, how many are needed for a draw and in all (unlike `ready`, `goal` does not start again),
    and the batch that is drawn: first the chosen places in the pool, then what follows from them;
    nothing once the batch was delivered."""

    moved: int
    drawable: int
    ready: int
    goal: int
    drawn: list[Any]


class EpochLedger:
    """The records of an epoch, by slot, in order of arrival; `begun`: it had at least one."""

    def __init__(self) -> None:
        self.rows = 0  # that have arrived
        self.begun = False
        self.ended = False
        # parts, each after the number of records before it
        self._arrived: deque[tuple[int, Slots]] = deque()

    def add(self, slots: Slots) -> None:
        """Add records that have arrived."""
        self._arrived.append((self.rows, slots))
        self.rows += len(slots)
        self.begun = True

    def oldest(self, moved: int, count: int) -> list[Slots]:
        """Return at most `count` of those after the first `moved`, which are not needed again."""
        arrived, found, end = self._arrived, [], moved + count
        while arrived and arrived[0][0] + len(arrived[0][1]) <= moved:
            arrived.popleft()
        for start, slots in arrived:
            if start >= end:
                break
            found.append(slots[max(0, moved - start) : end - start])
        return found
