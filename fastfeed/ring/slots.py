"""The states of a slot, one byte each, and who may change which: a table that both processes see.

    UNUSED ──▶ FREE ──▶ FILLING ──▶ READY ──▶ LENT
                ▲ ◀────── worker ──┘  │         │
                └──────────────── trainer ◀─────┘

Every transition has one owner (the worker up to READY, the trainer from there), so no lock is
needed: a slot belongs to whoever may move it next, and the token that tells the other side is sent
after the byte was written.
"""

from __future__ import annotations

from fastfeed.core.stats import Audit

UNUSED, FREE, FILLING, READY, LENT = range(5)
NAMES = ("unused", "free", "filling", "ready", "lent")
NONE = bytes(2**12)  # so many unused slots


class BadMove(Exception):
    """A slot was moved by somebody to whom it does not belong: a mistake of ours, never of a user."""


class Slots:
    """The state machine over `table`, one byte a slot."""

    def __init__(self, table: memoryview | bytearray) -> None:
        self._table = memoryview(table)

    def open(self, slots: range) -> None:
        """New slots, free."""
        for slot in slots:
            self._move(slot, UNUSED, now=FREE)

    def close(self, slot: int) -> None:
        """A free slot whose memory goes."""
        self._move(slot, FREE, now=UNUSED)

    def fill(self, slot: int) -> None:
        """A free slot that a producer writes into."""
        self._move(slot, FREE, now=FILLING)

    def abandon(self, slot: int) -> None:
        """It was not needed after all."""
        self._move(slot, FILLING, now=FREE)

    def commit(self, slot: int) -> None:
        """It holds a batch."""
        self._move(slot, FILLING, now=READY)

    def lend(self, slot: int) -> None:
        """The consumer has it."""
        self._move(slot, READY, now=LENT)

    def release(self, slot: int) -> None:
        """Nobody looks at it any more, whether or not it was ever handed out."""
        if self._table[slot] not in (READY, LENT):
            raise BadMove(f"slot {slot} was {NAMES[self._table[slot]]}, to be released")
        self._table[slot] = FREE

    def state(self, slot: int) -> int:
        """The state of one slot."""
        return self._table[slot]

    def count(self, state: int, slots: range) -> int:
        """How many of `slots` are in a state."""
        return bytes(self._table[slots.start : slots.stop]).count(state)

    def audit(self) -> Audit:
        """Every slot that there is."""
        table, end = bytes(self._table), len(self._table)
        # there is room for far more slots than there are
        while end and table.endswith(NONE, 0, end):
            end -= len(NONE)
        return Audit(
            *(table.count(state, 0, max(end, 0)) for state in (FREE, FILLING, READY, LENT))
        )

    def _move(self, slot: int, was: int, *, now: int) -> None:
        if self._table[slot] != was:
            raise BadMove(
                f"slot {slot} was {NAMES[self._table[slot]]}, to go from {NAMES[was]} to "
                f"{NAMES[now]}"
            )
        self._table[slot] = now
