"""Order in which batches leave, against plain lists: by ticket, or by epoch as they come; and the
end of a feed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.core.position import StreamStart
from fastfeed.producers import reorder as sequence
from fastfeed.producers.reorder import END_OF_EPOCH, FAILURE_GRACE_S, ReorderBuffer


class Clock:
    """Time that passes only when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 50.0
        monkeypatch.setattr(sequence, "time", SimpleNamespace(perf_counter=lambda: self.now_s))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@given(st.permutations(range(12)), st.data())
def test_tickets_leave_in_order_as_soon_as_they_can(
    tickets: list[int], data: st.DataObject
) -> None:
    order: ReorderBuffer[Any] = ReorderBuffer(1, ordered=True)
    left: list[int] = []
    for count, ticket in enumerate(tickets, 1):
        order.insert(ticket, ticket)
        came = set(tickets[:count])
        if data.draw(st.booleans()):
            left += order.ready
            order.ready.clear()
        row = next(i for i in range(13) if i not in came)
        assert [*left, *order.ready] == list(range(row)), (
            "the longest row without a gap, and no more"
        )
        assert order.next_key == row
    assert not order.waiting
    assert order.settled() is bool(order.ready)
    order.end()
    assert order.settled()


def leave(here: list[int], ends: set[int], *, window: int, gone: set[int]) -> list[int]:
    """Return the tickets that leave when the last of `here` has come, the lowest first; at the
    start, those of `gone` have left in an earlier run."""
    left = list(gone)
    for ticket in here:
        waiting = {*here[: here.index(ticket) + 1]} - {*left}
        for one in sorted(waiting):
            missing = next(n for n in range(len(left) + 1) if n not in left)
            apart = any(end < one and end not in left for end in ends)
            near = one - missing <= window and not apart and one not in ends
            left += [one] if one == missing or near else []
    return left[len(gone) :]


@given(
    st.permutations(range(14)), st.integers(1, 6), st.sets(st.integers(0, 12)), st.integers(0, 5)
)
def test_no_ticket_leaves_later_than_the_window_or_in_another_epoch(
    tickets: list[int], window: int, ends: set[int], done: int
) -> None:
    """All that may leave do, whichever come first, also behind those of an earlier run."""
    gone = {n for n in range(2, 2 + done) if n <= window and not any(end <= n for end in ends)}
    ends = ends | {13}
    tickets = [n for n in tickets if n not in gone]
    numbers = sorted(tickets)
    start = StreamStart(next=0, done=frozenset(gone))
    order: ReorderBuffer[Any] = ReorderBuffer(1, ordered=True, window=window, gaps=start.gaps)
    for count, ticket in enumerate(tickets, 1):
        epoch = sum(end < ticket for end in ends)
        batch = END_OF_EPOCH if ticket in ends else ticket
        order.insert(batch, numbers.index(ticket), epoch=epoch)
        wanted = leave(tickets[:count], ends, window=window, gone=gone)
        assert list(order.ready) == [END_OF_EPOCH if n in ends else n for n in wanted]
        assert order.waiting == count - len(wanted)
    assert sorted(wanted) == numbers, "each once"
    assert all(at + len(gone) - n <= window for at, n in enumerate(wanted)), "nothing is late"
    by_epoch = [sum(end < n for end in ends) for n in wanted]
    assert by_epoch == sorted(by_epoch), "epochs stay apart"


def test_a_ticket_that_comes_twice_leaves_once() -> None:
    """A signal handler raises before a caller has noted what it inserted: it inserts it again."""
    order: ReorderBuffer[Any] = ReorderBuffer(1, ordered=True, window=2)
    for ticket in (1, 1, 4, 4, 0, 0, 2, 1, 3, 4, 5):
        order.insert(ticket, ticket)
    assert sorted(order.ready) == list(range(6)) and not order.waiting


@st.composite
def interleaved(draw: st.DrawFn) -> tuple[int, int, list[tuple[int, int, int]]]:
    """Draw producers, epochs, and (producer, epoch, number) in a possible order; number -1 ends the
    epoch."""
    producers, epochs = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    streams = []
    for producer in range(producers):
        stream = []
        for epoch in range(epochs):
            stream += [(producer, epoch, n) for n in range(draw(st.integers(0, 3)))] + [
                (producer, epoch, -1)
            ]
        streams.append(stream)
    events = []
    while any(streams):
        events.append(draw(st.sampled_from([s for s in streams if s])).pop(0))
    return producers, epochs, events


@given(interleaved())
def test_no_batch_passes_the_end_of_an_epoch_ahead_of_it(
    case: tuple[int, int, list[tuple[int, int, int]]],
) -> None:
    producers, epochs, events = case
    order: ReorderBuffer[Any] = ReorderBuffer(producers, ordered=False)
    for producer, epoch, number in events:
        order.end_epoch(epoch) if number < 0 else order.insert((producer, epoch, number), epoch)
    for _ in range(producers):
        order.end()
    made = list(order.ready)
    assert made.count(END_OF_EPOCH) == epochs and made[-1] is END_OF_EPOCH
    batches = [b for b in made if b is not END_OF_EPOCH]
    assert [epoch for _, epoch, _ in batches] == sorted(epoch for _, epoch, _ in batches)
    for producer in range(producers):
        assert [b for b in batches if b[0] == producer] == [
            e for e in events if e[0] == producer and e[2] >= 0
        ]
    assert order.settled() and not order.waiting


@given(st.lists(st.tuples(st.sampled_from(["end", "join", "leave"]), st.integers(0, 9))))
def test_an_epoch_ends_with_the_last_of_those_that_are_there(
    events: list[tuple[str, int]],
) -> None:
    order: ReorderBuffer[Any] = ReorderBuffer(2, ordered=False)
    at = [0, 0]  # by producer: the epoch that it puts
    for event, number in events:
        one = number % len(at)
        if event == "end":
            order.end_epoch(at[one])
            at[one] += 1
        elif event == "join":
            at.append(order.join())
        elif len(at) > 1:
            order.leave(at.pop(one))
        assert order.next_key == min(at) == order.ready.count(END_OF_EPOCH)


def test_nothing_is_settled_while_somebody_may_still_bring_something() -> None:
    order: ReorderBuffer[Any] = ReorderBuffer(2, ordered=False)
    assert not order.settled()
    order.end()
    assert not order.settled()
    order.end()
    assert order.settled()


def test_a_failure_is_met_in_its_place(clock: Clock) -> None:
    order: ReorderBuffer[Any] = ReorderBuffer(2, ordered=True)
    order.fail(ValueError("2"), 2)
    assert not order.settled(), "tickets 0 and 1 may still come"
    order.insert("0", 0)
    order.insert("1", 1)
    for want in ("0", "1"):
        assert order.settled()
        assert order.ready.popleft() == want
    order.insert("3", 3)
    for _ in range(2):
        with pytest.raises(ValueError, match="2"):
            order.settled()


def test_a_failure_does_not_wait_longer_than_its_grace(clock: Clock) -> None:
    order: ReorderBuffer[Any] = ReorderBuffer(2, ordered=True)
    order.fail(ValueError("5"), 5)
    assert order.max_wait_s(60) == pytest.approx(FAILURE_GRACE_S, abs=0.01)
    assert order.max_wait_s(0.1) == 0.1
    clock.now_s += FAILURE_GRACE_S * 0.9
    assert not order.settled()
    clock.now_s += FAILURE_GRACE_S * 0.2
    with pytest.raises(ValueError, match="5"):
        order.settled()
    assert FAILURE_GRACE_S < 1, "the consumer must know within a second"


def test_a_failure_ahead_of_what_is_asked_for_gives_way_to_one_before_it(clock: Clock) -> None:
    """A slow producer fails behind one that has already failed an epoch further; then nothing
    arrives any more."""
    order: ReorderBuffer[Any] = ReorderBuffer(2, ordered=True)
    order.want(1)
    order.fail(ValueError("ahead"), 7, epoch=1)
    order.end()
    assert not order.settled(), "the other one may still bring something"
    order.fail(ValueError("now"), 0, epoch=0)
    order.end()
    with pytest.raises(ValueError, match="now"):
        order.settled()
    order.fail(ValueError("later"), None)
    with pytest.raises(ValueError, match="now"):
        order.settled()


def test_a_failure_without_a_place_is_met_when_all_have_ended(clock: Clock) -> None:
    order: ReorderBuffer[Any] = ReorderBuffer(2, ordered=False)
    order.insert("a", 0)
    order.fail(ValueError("x"), None)
    order.end()
    order.end()
    assert order.settled()
    assert order.ready.popleft() == "a"
    with pytest.raises(ValueError, match="x"):
        order.settled()


@given(st.integers(0, 5), st.integers(0, 8))
def test_skipped_errors_have_a_limit(limit: int, count: int) -> None:
    order: ReorderBuffer[Any] = ReorderBuffer(1, ordered=False, error_limit=limit)
    for number in range(count):
        order.skip(ValueError(str(number)), None)
    assert (order.failure is None) is (count <= limit)
    if order.failure is not None:
        assert str(order.failure.error) == str(limit), "the first one beyond it"


def test_what_was_made_can_be_let_go() -> None:
    order: ReorderBuffer[Any] = ReorderBuffer(1, ordered=True)
    order.insert("a", 0)
    order.insert("c", 2)
    order.clear()
    assert not order.ready and not order.waiting
