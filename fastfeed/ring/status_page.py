"""Page on which a worker process publishes its status. The trainer reads it, also after the
worker's death."""

from __future__ import annotations

import os
import struct
from dataclasses import fields
from typing import NamedTuple

from fastfeed.core.stats import ROW_FIELDS, StageRow
from fastfeed.ring.memory import Segment
from fastfeed.ring.slots import Slots

# states of all slots that a worker ever has: its ring grows forty times at most
SLOT_STATES_NBYTES = 2**16
# Text of the error that ends the worker. Its memory is there before it is needed: writing it takes
# no descriptor and no system call.
LAST_WORDS_NBYTES = 2**12
THREADS_AT = SLOT_STATES_NBYTES + LAST_WORDS_NBYTES
COUNTERS_STRUCT = struct.Struct(
    "<" + "".join("q" if f.type == "int" else "d" for f in fields(StageRow))
)
IN_FLIGHT = struct.Struct("<qqq")
THREAD_NBYTES = 192
NO_ITEM = -1


class InFlight(NamedTuple):
    """Item that a producer is working on: the ticket or the epoch's position, the item's number in
    the epoch, and the record in the item; -1 for none."""

    key: int
    item: int
    record: int


NOT_IN_FLIGHT = InFlight(NO_ITEM, NO_ITEM, NO_ITEM)


class StatusPage:
    """Slot states, the worker's last words, and for each of its producers the counters and the item
    in flight. Each field has one writer; of last words, the first ones count."""

    def __init__(self, segment: Segment, threads: int) -> None:
        self.segment = segment
        self.threads = threads
        self._memory = segment.map
        self.slots = Slots(self._memory[:SLOT_STATES_NBYTES])

    @classmethod
    def create(cls, threads: int) -> StatusPage:
        """Create a page in memory of its own."""
        page = cls(Segment.create(cls.nbytes(threads), "fastfeed-board"), threads)
        for thread in range(threads):
            page.set_in_flight(thread, NOT_IN_FLIGHT)
        return page

    @staticmethod
    def nbytes(threads: int) -> int:
        """Return the size of a page."""
        return THREADS_AT + threads * THREAD_NBYTES

    @property
    def last_words(self) -> str:
        """Text of the error that has ended the worker, or ""."""
        words = bytes(self._memory[SLOT_STATES_NBYTES:THREADS_AT])
        return words.rstrip(b"\0").decode(errors="replace")

    def leave(self, words: bytes) -> None:
        """Leave last words, unless there are some."""
        if not self._memory[SLOT_STATES_NBYTES]:
            end = min(len(words), LAST_WORDS_NBYTES)
            self._memory[SLOT_STATES_NBYTES : SLOT_STATES_NBYTES + end] = words[:end]

    def publish(self, thread: int, row: StageRow) -> None:
        """Publish a producer's counters."""
        COUNTERS_STRUCT.pack_into(
            self._memory, THREADS_AT + thread * THREAD_NBYTES, *ROW_FIELDS(row)
        )

    def row(self, thread: int) -> StageRow:
        """Return a producer's counters."""
        return StageRow(
            *COUNTERS_STRUCT.unpack_from(self._memory, THREADS_AT + thread * THREAD_NBYTES)
        )

    def set_in_flight(self, thread: int, value: tuple[int, int, int]) -> None:
        """Publish what a producer starts to work on."""
        IN_FLIGHT.pack_into(
            self._memory, THREADS_AT + thread * THREAD_NBYTES + COUNTERS_STRUCT.size, *value
        )

    def in_flight(self, thread: int) -> InFlight:
        """Return what a producer is working on, or was when it died."""
        return InFlight(
            *IN_FLIGHT.unpack_from(
                self._memory, THREADS_AT + thread * THREAD_NBYTES + COUNTERS_STRUCT.size
            )
        )


def leave_from_outside(page: int, words: bytes) -> None:
    """Leave last words on a page that may not be mapped here, given its descriptor."""
    if os.pread(page, 1, SLOT_STATES_NBYTES) == b"\0":
        os.pwrite(page, words[:LAST_WORDS_NBYTES], SLOT_STATES_NBYTES)
