"""The page on which a worker process writes what it is doing; the trainer can read it after the
worker's death."""

from __future__ import annotations

import struct
from dataclasses import fields
from operator import attrgetter
from typing import NamedTuple

from fastfeed.core.stats import StageRow
from fastfeed.ring.memory import Segment, Untracked
from fastfeed.ring.slots import Slots

# the states of all slots that a worker ever has: its ring grows forty times at most
TABLE_NBYTES = 2**16
ROW = struct.Struct("<qqqqddddqq")
COUNTERS = attrgetter(*(f.name for f in fields(StageRow)))
HAND = struct.Struct("<qqq")
THREAD_NBYTES = 128
NOTHING = -1


class InFlight(NamedTuple):
    """What a producer works on: the ticket or the epoch's position, the number of the item in it,
    and the record in the item; -1 for none."""

    key: int
    item: int
    record: int


IDLE = InFlight(NOTHING, NOTHING, NOTHING)


class StatusPage:
    """Slot states, and for each of the worker's producers its counters and what it has in flight.
    Each field has one writer."""

    def __init__(self, segment: Segment, threads: int) -> None:
        self.segment = segment
        self.threads = threads
        self._memory = memoryview(segment.map)
        self.slots = Slots(self._memory[:TABLE_NBYTES])

    @classmethod
    def create(cls, threads: int) -> StatusPage:
        """Return a new page in memory of its own."""
        board = cls(Untracked.create(cls.nbytes(threads), "fastfeed-board"), threads)
        for thread in range(threads):
            board.hold(thread, IDLE)
        return board

    @staticmethod
    def nbytes(threads: int) -> int:
        """Return the size of a page."""
        return TABLE_NBYTES + threads * THREAD_NBYTES

    def publish(self, thread: int, row: StageRow) -> None:
        """Write a producer's counters."""
        ROW.pack_into(self._memory, TABLE_NBYTES + thread * THREAD_NBYTES, *COUNTERS(row))

    def row(self, thread: int) -> StageRow:
        """Return a producer's counters."""
        return StageRow(*ROW.unpack_from(self._memory, TABLE_NBYTES + thread * THREAD_NBYTES))

    def hold(self, thread: int, hand: tuple[int, int, int]) -> None:
        """Write what a producer begins to work on."""
        HAND.pack_into(self._memory, TABLE_NBYTES + thread * THREAD_NBYTES + ROW.size, *hand)

    def hand(self, thread: int) -> InFlight:
        """Return what a producer works on, or worked on when it died."""
        return InFlight(
            *HAND.unpack_from(self._memory, TABLE_NBYTES + thread * THREAD_NBYTES + ROW.size)
        )
