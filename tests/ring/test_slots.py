"""States of a slot against a list: every transition with an owner works, every other one is
refused."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fastfeed.ring.slots import FILLING, FREE, LENT, NAMES, READY, UNUSED, InvalidTransition, Slots

COUNT = 4
any_slot = st.integers(0, COUNT - 1)
# Required states and resulting state of each transition, as drawn in the module's picture.
MOVES: dict[str, tuple[set[int], int]] = {
    "open": ({UNUSED}, FREE),
    "close": ({FREE}, UNUSED),
    "fill": ({FREE}, FILLING),
    "abandon": ({FILLING}, FREE),
    "commit": ({FILLING}, READY),
    "lend": ({READY}, LENT),
    "release": ({READY, LENT}, FREE),
}


def move(slots: Slots, name: str, slot: int) -> None:
    getattr(slots, name)(range(slot, slot + 1) if name == "open" else slot)


class Moves(RuleBasedStateMachine):
    """Any transitions in any order; two views of one table, like those of trainer and worker."""

    def __init__(self) -> None:
        super().__init__()
        table = bytearray(COUNT)
        self.ends = Slots(table), Slots(memoryview(table))
        self.model = [UNUSED] * COUNT

    @rule(name=st.sampled_from(sorted(MOVES)), slot=any_slot, end=st.integers(0, 1))
    def make(self, name: str, slot: int, end: int) -> None:
        needed, left = MOVES[name]
        if self.model[slot] in needed:
            move(self.ends[end], name, slot)
            self.model[slot] = left
            return
        with pytest.raises(
            InvalidTransition, match=f"slot {slot} is {NAMES[self.model[slot]]} and cannot "
        ):
            move(self.ends[end], name, slot)

    @invariant()
    def both_ends_see_the_model(self) -> None:
        for slots in self.ends:
            assert [slots.state(slot) for slot in range(COUNT)] == self.model
            for state in range(len(NAMES)):
                assert slots.count(state, range(COUNT)) == self.model.count(state)
                assert slots.count(state, range(1, 3)) == self.model[1:3].count(state)

    @invariant()
    def the_audit_adds_up(self) -> None:
        audit = self.ends[0].audit()
        counts = [self.model.count(state) for state in (FREE, FILLING, READY, LENT)]
        assert [audit.free, audit.filling, audit.ready, audit.lent] == counts
        assert audit.all == sum(counts) == COUNT - self.model.count(UNUSED)


TestMoves = Moves.TestCase
