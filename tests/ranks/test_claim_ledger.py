"""The ledger: every batch is consumed once an epoch, whatever ranks come, go and wait."""

from __future__ import annotations

import json
from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fastfeed.ranks.claim_ledger import ClaimAnswer, ClaimLedger

BATCHES, EPOCHS = 5, 3


class Job(RuleBasedStateMachine):
    """Ranks that claim, consume, die, join, and a server that is started anew from its state."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = ClaimLedger(BATCHES, run=EPOCHS)
        self.epochs: dict[int, int] = {}  # by rank; EPOCHS: it has ended
        self.held: dict[int, list[int]] = {}
        self.consumed: Counter[int] = Counter()
        self.ranks = 0

    @precondition(lambda self: len(self.epochs) < 4)
    @rule()
    def join(self) -> None:
        self.epochs[self.ranks], self.held[self.ranks] = 0, []
        self.ranks += 1

    @precondition(lambda self: self.epochs)
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(sorted(self.epochs)))
        epoch = self.epochs[rank]
        if epoch == EPOCHS:
            return
        found = self.ledger.claim(rank, epoch)
        if isinstance(found, int):
            assert found // BATCHES <= epoch
            assert all(found not in held for held in self.held.values())
            self.held[rank].append(found)
        elif found is ClaimAnswer.END:
            self.epochs[rank] += 1
        else:  # only the end of a run waits, and only for others
            assert epoch == EPOCHS - 1
            assert any(held for other, held in self.held.items() if other != rank)

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def consume(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from([r for r, held in sorted(self.held.items()) if held]))
        serial = self.held[rank].pop(0)
        assert self.ledger.consume(rank, [serial]) == 1
        assert self.ledger.consume(rank, [serial]) == 0
        self.consumed[serial] += 1

    @precondition(lambda self: self.epochs)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(sorted(self.epochs)))
        assert self.ledger.leave(rank) == len(self.held.pop(rank))
        del self.epochs[rank]

    @rule()
    def begin_anew_from_the_state(self) -> None:
        state = json.loads(json.dumps(self.ledger.state()))
        self.ledger = ClaimLedger(BATCHES, run=EPOCHS, state=state)
        self.epochs.clear()
        self.held.clear()

    @invariant()
    def nothing_is_consumed_twice(self) -> None:
        assert max(self.consumed.values(), default=1) == 1
        for epoch, count in self.ledger.consumed.items():
            assert count == sum(serial // BATCHES == epoch for serial in self.consumed)

    def teardown(self) -> None:
        """Let one last rank do what is left: then every epoch is complete."""
        for rank in self.epochs:
            self.ledger.leave(rank)
        rank, epoch = self.ranks, 0
        while epoch < EPOCHS:
            found = self.ledger.claim(rank, epoch)
            assert found is not ClaimAnswer.WAIT
            if isinstance(found, int):
                self.consumed[found] += self.ledger.consume(rank, [found])
            else:
                epoch += 1
        assert self.consumed == Counter(range(BATCHES * EPOCHS))


TestJob = Job.TestCase
TestJob.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_run_without_an_end_never_waits() -> None:
    ledger = ClaimLedger(1, run=0)
    assert ledger.claim(0, 0) == 0
    assert ledger.claim(1, 0) is ClaimAnswer.END
    assert ledger.claim(1, 1) == 1


def test_a_rank_in_a_later_epoch_gets_what_a_dead_one_left() -> None:
    ledger = ClaimLedger(2, run=3)
    assert [ledger.claim(0, 0), ledger.claim(1, 0)] == [0, 1]
    assert ledger.consume(1, [1]) == 1
    assert ledger.claim(1, 1) == 2
    ledger.leave(0)
    assert ledger.claim(1, 1) == 0
    assert ledger.given_again == 1


@pytest.mark.parametrize(("run", "first"), [(2, 0), (2, 1), (3, 1), (0, 0)])
def test_a_job_has_ended_when_all_batches_of_its_run_are_consumed(run: int, first: int) -> None:
    ledger = ClaimLedger(2, run=run, state={"epoch": first, "begun": {}})
    for epoch in range(first, run):
        for _ in range(2):
            assert not ledger.ended()
            ledger.consume(0, [ledger.claim(0, epoch)])
    assert ledger.ended() == (run > 0)
