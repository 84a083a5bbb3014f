"""Status page of a worker: one process writes, the other reads, and each field has one writer."""

from __future__ import annotations

from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from fastfeed.core.stats import StageRow
from fastfeed.ring.memory import Segment
from fastfeed.ring.slots import READY
from fastfeed.ring.status_page import (
    NOT_IN_FLIGHT,
    SLOT_STATES_NBYTES,
    InFlight,
    StatusPage,
)

long = st.integers(-(2**63), 2**63 - 1)
counts, seconds = st.integers(0, 2**63 - 1), st.floats(0, 1e12)
hands = st.builds(InFlight, long, long, long)
NAMES = [field.name for field in fields(StageRow)]
rows = st.builds(StageRow, **{name: seconds if name.endswith("_s") else counts for name in NAMES})


def other_side(page: StatusPage) -> StatusPage:
    return StatusPage(Segment(page.segment.fd, StatusPage.nbytes(page.threads)), page.threads)


@given(st.lists(st.tuples(rows, hands), min_size=1, max_size=5))
def test_every_producer_has_its_own_place(told: list[tuple[StageRow, InFlight]]) -> None:
    page = StatusPage.create(len(told))
    try:
        trainer = other_side(page)
        assert [trainer.in_flight(t) for t in range(len(told))] == [NOT_IN_FLIGHT] * len(told)
        assert [trainer.row(t) for t in range(len(told))] == [StageRow()] * len(told)
        for thread, (row, hand) in enumerate(told):
            page.publish(thread, row)
            page.set_in_flight(thread, hand)
        assert [(trainer.row(t), trainer.in_flight(t)) for t in range(len(told))] == told
        assert trainer.slots.audit().all == 0, "the table of slots is not touched"
    finally:
        page.segment.close_fd()


def test_counters_do_not_reach_into_the_table() -> None:
    page = StatusPage.create(2)
    page.segment.close_fd()
    last = SLOT_STATES_NBYTES - 1
    page.slots.open(range(SLOT_STATES_NBYTES))
    for thread in (0, 1):
        page.publish(thread, StageRow(**{n: 1.5 if n.endswith("_s") else 2**62 for n in NAMES}))
        page.set_in_flight(thread, (2**62, 2**62, 2**62))
    assert page.slots.audit().free == SLOT_STATES_NBYTES
    page.slots.fill(last)
    page.slots.commit(last)
    assert page.slots.state(last) == READY
    assert page.row(0) == page.row(1)
