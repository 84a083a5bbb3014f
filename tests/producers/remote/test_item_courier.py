"""Items for a producer elsewhere: requested ahead by its rate, forwarded in their order."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.producers.process.work_socket import REPLY, REQUEST, WorkItem, send_items
from fastfeed.producers.remote.relay import (
    MAX_OUTSTANDING,
    MIN_OUTSTANDING,
    ItemCourier,
)


class Link:
    """A courier with the dispatcher's end of its socket."""

    def __init__(self, *, dispatched: bool = True) -> None:
        self.end, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sent: list[Any] = []
        handle: Any = SimpleNamespace(
            worker_fds=lambda: (0, 0, 0, 0, 0, other.fileno(), 0, 0),
            task=SimpleNamespace(dispatched=dispatched),
        )
        with other:
            self.courier = ItemCourier(handle, self.sent.append)
        self.end.setblocking(False)

    def requested(self) -> int:
        """Return how many items are requested, 0 for no request."""
        try:
            return int(REQUEST.unpack(self.end.recv(REQUEST.size))[0])
        except BlockingIOError:
            return 0

    def close(self) -> None:
        self.courier.close()
        self.end.close()


@pytest.fixture
def link() -> Iterator[Link]:
    found = Link()
    yield found
    found.close()


def items(count: int, first: int = 0) -> list[WorkItem]:
    return [WorkItem(0, first + n, [n], 0, first + n) for n in range(count)]


def test_items_are_forwarded_as_they_were_packed(link: Link) -> None:
    link.courier.returned(0)
    assert link.requested() == 2
    send_items(link.end, items(2))
    assert link.courier.forward()
    assert [ticket for ticket, *_ in pickle.loads(link.sent[0][1])] == [0, 1]


def test_large_items_are_forwarded_unpacked(link: Link) -> None:
    large = [WorkItem(0, 0, bytes(10**5), 0, 0)]
    send_items(link.end, large)
    assert link.courier.forward()
    ((ticket, epoch, payload, number),) = link.sent[0][1]
    assert (ticket, epoch, len(payload), number) == (0, 0, 10**5, 0)


def test_the_end_is_forwarded(link: Link) -> None:
    link.end.send(REPLY.pack(b"E", 0))
    assert link.courier.forward() and link.sent == [(b"E", 0)]
    link.courier.returned(1)
    assert not link.requested()


def test_a_closed_dispatcher_ends_it(link: Link) -> None:
    link.end.close()
    assert not link.courier.forward()
    link.courier.returned(0)  # nobody hears it


def test_permits_are_forwarded() -> None:
    link = Link(dispatched=False)
    link.end.send(REPLY.pack(b"A", 3))
    assert link.courier.forward() and link.sent == [(b"A", 3)]
    link.courier.returned(0)
    assert not link.requested()
    link.close()


@given(st.lists(st.integers(0, 8), max_size=30))
def test_one_request_at_a_time_and_never_too_many(returns: list[int]) -> None:
    link = Link()
    link.courier.returned(0)
    ticket = outstanding = 0
    wanted = link.requested()
    for number in returns:
        if wanted:
            send_items(link.end, items(wanted, ticket))
            assert link.courier.forward()
            ticket, outstanding = ticket + wanted, outstanding + wanted
        back = min(number, outstanding)
        outstanding -= back
        link.courier.returned(back)
        wanted = link.requested()
        assert outstanding + wanted <= MAX_OUTSTANDING
        assert wanted or outstanding >= MIN_OUTSTANDING
        assert not link.requested()
    link.close()
