"""The states of a slot, one byte each, in a table that both processes see, and which process may
change them.

    UNUSED ──▶ FREE ──▶ FILLING ──▶ READY ──▶ LENT
                ▲ ◀────── worker ──┘  │         │
                └──────────────── trainer ◀─────┘

Every transition has one owner (the worker up to READY, the trainer from there), so no lock is
needed: a slot belongs to the process that may move it next, and the token that informs the other
side is sent after the byte was written.
"""

from __future__ import annotations

from fastfeed.core.stats import SlotCounts

UNUSED, FREE, FILLING, READY, LENT = range(5)
NAMES = ("unused", "free", "filling", "ready", "lent")
NONE = bytes(2**12)  # unused slots


class BadMove(Exception):
    """A slot was moved by the wrong process: a defect of fastfeed, never a user's mistake."""


class Slots:
    """The state machine over `table`, one byte a slot."""

    def __init__(self, table: memoryview | bytearray) -> None:
        self._table = memoryview(table)

    def open(self, slots: range) -> None:
        """Add new slots, which are free."""
        for slot in slots:
            self._move(slot, UNUSED, now=FREE)

    def close(self, slot: int) -> None:
        """Remove a free slot with its memory."""
        self._move(slot, FREE, now=UNUSED)

    def fill(self, slot: int) -> None:
        """Give a free slot to a producer, which writes into it."""
        self._move(slot, FREE, now=FILLING)

    def abandon(self, slot: int) -> None:
        """Return a slot that was not needed."""
        self._move(slot, FILLING, now=FREE)

    def commit(self, slot: int) -> None:
        """Mark a slot that holds a batch."""
        self._move(slot, FILLING, now=READY)

    def lend(self, slot: int) -> None:
        """Give a slot to the consumer."""
        self._move(slot, READY, now=LENT)

    def release(self, slot: int) -> None:
        """Return a slot without references, whether or not it was ever lent."""
        if self._table[slot] not in (READY, LENT):
            raise BadMove(f"slot {slot} was {NAMES[self._table[slot]]}, to be released")
        self._table[slot] = FREE

    def state(self, slot: int) -> int:
        """Return the state of one slot."""
        return self._table[slot]

    def count(self, state: int, slots: range) -> int:
        """Return how many of `slots` are in a state."""
        return bytes(self._table[slots.start : slots.stop]).count(state)

    def audit(self) -> SlotCounts:
        """Return how many slots are in each state."""
        table, end = bytes(self._table), len(self._table)
        # the table has room for far more slots than there are
        while end and table.endswith(NONE, 0, end):
            end -= len(NONE)
        return SlotCounts(
            *(table.count(state, 0, max(end, 0)) for state in (FREE, FILLING, READY, LENT))
        )

    def _move(self, slot: int, was: int, *, now: int) -> None:
        if self._table[slot] != was:
            raise BadMove(
                f"slot {slot} was {NAMES[self._table[slot]]}, to go from {NAMES[was]} to "
                f"{NAMES[now]}"
            )
        self._table[slot] = now
