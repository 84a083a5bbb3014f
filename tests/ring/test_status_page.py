"""The page of a worker: what one process writes, the other reads, each field with one writer."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.core.stats import StageRow
from fastfeed.ring.memory import Segment
from fastfeed.ring.slots import READY
from fastfeed.ring.status_page import (
    IDLE,
    NOTHING,
    TABLE_NBYTES,
    InFlight,
    StatusPage,
)

long = st.integers(-(2**63), 2**63 - 1)
counts, seconds = st.integers(0, 2**63 - 1), st.floats(0, 1e12)
hands = st.builds(InFlight, long, long, long)
rows = st.builds(
    StageRow, counts, counts, counts, counts, seconds, seconds, seconds, seconds, counts, counts
)


def other_side(board: StatusPage) -> StatusPage:
    return StatusPage(Segment(board.segment.fd, StatusPage.nbytes(board.threads)), board.threads)


@given(st.lists(st.tuples(rows, hands), min_size=1, max_size=5))
def test_every_producer_has_its_own_place(told: list[tuple[StageRow, InFlight]]) -> None:
    board = StatusPage.create(len(told))
    try:
        trainer = other_side(board)
        assert [trainer.hand(t) for t in range(len(told))] == [IDLE] * len(told)
        assert [trainer.row(t) for t in range(len(told))] == [StageRow()] * len(told)
        for thread, (row, hand) in enumerate(told):
            board.publish(thread, row)
            board.hold(thread, hand)
        assert [(trainer.row(t), trainer.hand(t)) for t in range(len(told))] == told
        assert trainer.slots.audit().all == 0, "the table of slots is not touched"
    finally:
        board.segment.close_fd()


def test_counters_do_not_reach_into_the_table() -> None:
    board = StatusPage.create(2)
    board.segment.close_fd()
    last = TABLE_NBYTES - 1
    board.slots.open(range(TABLE_NBYTES))
    for thread in (0, 1):
        board.publish(thread, StageRow(*[2**62] * 4, *[1.5] * 4, 2**62, 2**62))
        board.hold(thread, (2**62, 2**62, 2**62))
    assert board.slots.audit().free == TABLE_NBYTES
    board.slots.fill(last)
    board.slots.commit(last)
    assert board.slots.state(last) == READY
    assert board.row(0) == board.row(1)


def test_nothing_is_what_no_hand_holds() -> None:
    assert set(IDLE) == {NOTHING}
    taken: Any = np.iinfo(np.int64)
    assert taken.min <= NOTHING < 0, "it can be no ticket, and it fits"
