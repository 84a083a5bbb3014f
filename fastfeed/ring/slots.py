"""States of the slots, one byte each, in a table that both processes see.

    UNUSED ──▶ FREE ──▶ FILLING ──▶ READY ──▶ LENT
                ▲ ◀────── worker ──┘  │         │
                └──────────────── trainer ◀─────┘

Every transition has one owner (the worker up to READY, the trainer from there), so no lock is
needed. A slot belongs to the side that may move it next; the token for the other side is sent after
the byte is written.
"""

from __future__ import annotations

from fastfeed.core.stats import SlotCounts

UNUSED, FREE, FILLING, READY, LENT = range(5)
NAMES = ("unused", "free", "filling", "ready", "lent")
UNUSED_RUN = bytes(2**12)  # run of unused slots


class InvalidTransition(Exception):
    """A slot was moved by a side that does not own it: a bug in fastfeed, never the user's."""


class Slots:
    """State machine over `table`, one byte for each slot."""

    def __init__(self, table: memoryview | bytearray) -> None:
        self._table = memoryview(table)

    def open(self, slots: range) -> None:
        """Make new slots free."""
        for slot in slots:
            self._transition(slot, UNUSED, now=FREE)

    def close(self, slot: int) -> None:
        """Retire a free slot whose memory is being unmapped."""
        self._transition(slot, FREE, now=UNUSED)

    def fill(self, slot: int) -> None:
        """Give a free slot to a producer that writes into it."""
        self._transition(slot, FREE, now=FILLING)

    def abandon(self, slot: int) -> None:
        """Free a slot that was not needed after all."""
        self._transition(slot, FILLING, now=FREE)

    def commit(self, slot: int) -> None:
        """Mark a filled slot as ready."""
        self._transition(slot, FILLING, now=READY)

    def lend(self, slot: int) -> None:
        """Mark a ready slot as lent to the consumer."""
        self._transition(slot, READY, now=LENT)

    def release(self, slot: int) -> None:
        """Free a slot that has no views any more, whether or not it was ever lent."""
        if self._table[slot] not in (READY, LENT):
            raise InvalidTransition(
                f"slot {slot} is {NAMES[self._table[slot]]} and cannot be released"
            )
        self._table[slot] = FREE

    def state(self, slot: int) -> int:
        """Return the state of one slot."""
        return self._table[slot]

    def count(self, state: int, slots: range) -> int:
        """Return how many of `slots` are in a state."""
        return bytes(self._table[slots.start : slots.stop]).count(state)

    def audit(self) -> SlotCounts:
        """Count the slots in each state."""
        table, end = bytes(self._table), len(self._table)
        # The table has room for far more slots than there are.
        while end and table.endswith(UNUSED_RUN, 0, end):
            end -= len(UNUSED_RUN)
        return SlotCounts(
            *(table.count(state, 0, max(end, 0)) for state in (FREE, FILLING, READY, LENT))
        )

    def _transition(self, slot: int, was: int, *, now: int) -> None:
        if self._table[slot] != was:
            raise InvalidTransition(
                f"slot {slot} is {NAMES[self._table[slot]]} and cannot go from {NAMES[was]} to "
                f"{NAMES[now]}"
            )
        self._table[slot] = now
