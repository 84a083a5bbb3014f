"""Blame for the death of a worker: only an item that was alone in flight, and not the first
time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from fastfeed.producers.process.workers import (
    ACCIDENTS_TO_BLAME,
    DEATHS_TO_BLAME,
    FRUITLESS_ACCIDENTS,
    FRUITLESS_DEATHS,
    FailureCounter,
    describe,
    without,
)

samples = st.tuples(st.integers(0, 2), st.integers(-1, 1))


class Deaths(RuleBasedStateMachine):
    """Against a plain count of how often each record was in flight at a death."""

    def __init__(self) -> None:
        super().__init__()
        self.strikes = FailureCounter()
        self.model: Counter[tuple[int, int]] = Counter()

    @rule(hands=st.lists(samples, max_size=3, unique=True), accidental=st.booleans())
    def die(self, hands: list[tuple[int, int]], accidental: bool) -> None:
        guilty = self.strikes.count_death(hands, accidental=accidental)
        self.model.update(hands)
        alone = hands[0] if len(hands) == 1 else None
        if alone is not None and self.model[alone] >= (
            ACCIDENTS_TO_BLAME if accidental else DEATHS_TO_BLAME
        ):
            assert guilty == [alone]
            for sample in [s for s in self.model if s[0] == alone[0]]:
                del self.model[sample]
        else:
            assert guilty == []


TestDeaths = Deaths.TestCase


@pytest.mark.parametrize(
    ("accidental", "limit"), [(False, DEATHS_TO_BLAME), (True, ACCIDENTS_TO_BLAME)]
)
def test_a_sample_that_is_always_alone_is_found(accidental: bool, limit: int) -> None:
    strikes = FailureCounter()
    found = [strikes.count_death([(3, 1)], accidental=accidental) for _ in range(limit)]
    assert found == [[]] * (limit - 1) + [[(3, 1)]]
    assert limit >= 2, "nobody is blamed for one death"


@pytest.mark.parametrize(
    ("accidental", "limit"), [(False, FRUITLESS_DEATHS), (True, FRUITLESS_ACCIDENTS)]
)
def test_a_worker_that_only_dies_is_given_up(accidental: bool, limit: int) -> None:
    strikes = FailureCounter()

    def dies(worker: int, fruitful: bool = False) -> bool:
        return strikes.is_hopeless(worker, fruitful=fruitful, accidental=accidental)

    assert not any(dies(0) for _ in range(limit - 1))
    assert not dies(1), "each worker has its own count"
    assert not dies(0, fruitful=True), "a delivery wipes it out"
    assert [dies(0) for _ in range(limit)] == [False] * (limit - 1) + [True]


@pytest.mark.parametrize(
    ("payload", "records", "left"),
    [
        ([10, 11, 12], [], [10, 11, 12]),
        ([10, 11, 12], [1], [10, 12]),
        ([10, 11, 12], [0, 2], [11]),
        ([10], [0], None),
        ([10, 11], [-1], None),
        ("one piece", [-1], None),
    ],
)
def test_a_payload_without_what_kills(payload: Any, records: list[int], left: Any) -> None:
    assert without(payload, records) == left


def test_samples_are_named_by_what_the_user_knows() -> None:
    assert describe(7, -1, payload=object(), indexed=False) == "batch 7"
    assert describe(7, -1, payload=42, indexed=True) == "item 42 (batch 7)"
    assert describe(7, 1, payload=[30, 31], indexed=True) == "record 1 (index 31) of batch 7"
    assert describe(7, 1, payload=["a", "b"], indexed=False) == "record 1 of batch 7"
