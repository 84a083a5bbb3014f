"""The clock of a producer: every second that is no wait is in one stage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.core import stage_clock
from fastfeed.core.stage_clock import (
    AUGMENT,
    COLLATE,
    FILTER,
    HANDOVER,
    LAP_EVERY_S,
    READ,
    TRANSFORM,
    StageClock,
)
from fastfeed.core.stats import Snapshot, StageRow, total

ALL = (READ, FILTER, TRANSFORM, AUGMENT, COLLATE, HANDOVER)


class Hands:
    """A clock that others put forward."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    found = Hands()
    monkeypatch.setattr(stage_clock, "time", found)
    return found


def seconds(row: StageRow) -> list[float]:
    return [getattr(row, name) for name in stage_clock.STAGE_FIELDS]


Lap = tuple[int, float, float]  # a stage, the milliseconds of its work, the seconds of its waits
laps = st.tuples(st.sampled_from(ALL), st.floats(0, 2.0), st.floats(0, 2.0))


@given(st.lists(st.lists(laps, min_size=1, max_size=9), min_size=1, max_size=30))
def test_stages_and_waits_are_all_of_the_time(batches: list[list[Lap]]) -> None:
    hands, row = Hands(), StageRow()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_clock, "time", hands)
        clock = StageClock(row)
        clock.skip()
        idle = waited = 0.0
        for batch in batches:
            for stage, works, waits in batch:
                clock.enter(stage)
                hands.now_s += works / 1000 + waits
                row.wait_in_s += waits / 2
                row.wait_out_s += waits / 2
                waited += waits
            assert clock.hand_over() == hands.now_s
            clock.settle()
            assert row.busy_s + waited == pytest.approx(hands.now_s - 100 - idle)
            hands.now_s += 1
            idle += 1
            clock.skip()
        assert min(seconds(row)) >= -1e-9


def test_slow_batches_are_timed_one_by_one(hands: Hands) -> None:
    row = StageRow()
    clock, expected = StageClock(row), [0.0] * len(ALL)
    clock.skip()
    for number in range(40):
        for stage in ALL:
            assert clock.timing
            clock.enter(stage)
            works = float(number % (stage + 2))
            hands.now_s += works or 0.5
            expected[stage] += works or 0.5
        clock.hand_over()
        assert seconds(row) == pytest.approx(expected)


def test_fast_batches_are_divided_as_those_that_are_timed(hands: Hands) -> None:
    row, timed = StageRow(), 0
    clock = StageClock(row)
    clock.skip()
    each = LAP_EVERY_S / 100
    for _ in range(2000):
        timed += clock.timing
        for stage, parts in ((READ, 3), (TRANSFORM, 6), (COLLATE, 1)):
            clock.enter(stage)
            hands.now_s += parts * each
        clock.hand_over()
        clock.enter(READ)
    clock.settle()
    assert 0 < timed < 100
    assert row.busy_s == pytest.approx(2000 * 10 * each)
    assert seconds(row) == pytest.approx([6000 * each, 0, 12000 * each, 0, 2000 * each, 0])


def snapshot(consumed: StageRow, *producers: StageRow, trainer_s: float = 0.0) -> Snapshot:
    produced = total((*producers, StageRow(read_s=trainer_s)))
    return Snapshot(60.0, produced, consumed, 0, 0, producers)


def test_waits_are_divided_by_what_the_producers_do() -> None:
    rows = StageRow(read_s=6, transform_s=2, wait_in_s=5), StageRow(read_s=1, collate_s=1)
    found = snapshot(StageRow(wait_in_s=20), *rows).blocked_s
    assert found == pytest.approx({"read": 14, "transform": 4, "collate": 2})


def test_what_the_consumer_does_in_its_waits_is_its_own_stage() -> None:
    consumed = StageRow(wait_in_s=20, shuffle_s=4, augment_s=6)
    found = snapshot(consumed, StageRow(read_s=3, augment_s=1)).blocked_s
    assert found == pytest.approx({"read": 7.5, "augment": 8.5, "shuffle": 4})


def test_workers_wait_for_the_source_while_the_trainer_reads_it() -> None:
    rows = StageRow(transform_s=10, wait_in_s=10), StageRow(transform_s=10, wait_in_s=90)
    found = snapshot(StageRow(wait_in_s=10), *rows, trainer_s=20.0).blocked_s
    assert found == pytest.approx({"read": 10 * 60 / 80, "transform": 10 * 20 / 80})
    assert set(snapshot(StageRow(wait_in_s=10), *rows).blocked_s) == {"transform"}


def test_nothing_is_said_without_producers_or_waits() -> None:
    assert snapshot(StageRow(wait_in_s=10), StageRow()).blocked_s == {}
    assert snapshot(StageRow(), StageRow(read_s=1)).blocked_s == {}
