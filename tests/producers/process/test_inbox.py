"""The worker's inbox: items by ticket, requested in time, of any size; and no endless wait."""

from __future__ import annotations

import os
import pickle
import select
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfeed.producers.process.ship import pack
from fastfeed.producers.process.work_socket import MAX_REQUEST, REPLY, REQUEST, SocketInbox
from fastfeed.ring.writer import Stopped
from tests.helpers.feeds import LONG_S


class Post:
    """An inbox, and the trainer's end of its socket."""

    def __init__(self, threads: int = 1) -> None:
        self.trainer, work = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._stop, self.say_stop = os.pipe()
        self.trainer.settimeout(LONG_S)
        self.work = work
        self.inbox = SocketInbox(work, self._stop, threads=threads, allowed=1)
        self.begun: list[int] = []

    def take(self, epoch: int = 0) -> Any:
        item = self.inbox.take(epoch, self.begun.append)
        return item and (item.ticket, item.payload)

    def wanted(self) -> int:
        """Return the number that the worker requests."""
        return int(REQUEST.unpack(self.trainer.recv(REQUEST.size))[0])

    def asked(self) -> bool:
        """Return True if there is a request."""
        return bool(select.select([self.trainer], [], [], 0)[0])

    def send(self, *given: tuple[int, int, Any], large: bool = False) -> None:
        """Send items (ticket, epoch, payload), numbered by their tickets."""
        items = tuple((*item, item[0]) for item in given)
        if not large:
            self.trainer.send(REPLY.pack(b"I", 0) + pickle.dumps(items))
            return
        shipment = pack(list(items), what="items")
        socket.send_fds(self.trainer, [REPLY.pack(b"F", shipment.nbytes)], [shipment.fd])
        shipment.close()

    def end(self) -> None:
        self.trainer.send(REPLY.pack(b"E", 0))

    def close(self) -> None:
        self.trainer.close()
        self.work.close()
        os.close(self._stop)
        os.close(self.say_stop)


@pytest.fixture
def post() -> Iterator[Post]:
    made = Post()
    yield made
    made.close()


@settings(max_examples=50)
@given(
    orders=st.lists(st.lists(st.integers(0, 1000), max_size=5), min_size=1, max_size=4),
    large=st.booleans(),
)
def test_the_lowest_ticket_of_what_is_there_comes_first(
    orders: list[list[int]], large: bool
) -> None:
    """Also if a reply, like that to a worker's successor, brings lower tickets than those already
    there."""
    post, model = Post(), []
    seen: set[int] = set()
    try:
        for order in orders:
            new = list(dict.fromkeys(t for t in order if t not in seen))
            seen.update(new)
            post.send(*((t, 0, f"item {t}") for t in new), large=large)
            with post.inbox._changed:
                post.inbox._receive()
            model += new
            if model:
                assert post.take() == (min(model), f"item {min(model)}")
                model.remove(min(model))
        post.end()
        for ticket in sorted(model):
            assert post.take() == (ticket, f"item {ticket}")
        assert post.take() is None and post.take() is None
    finally:
        post.close()


def test_it_asks_before_it_needs_the_answer(post: Post) -> None:
    post.send((0, 0, "a"), (1, 0, "b"))
    assert post.take() == (0, "a")
    assert post.wanted() >= 1
    assert not post.asked()
    assert post.take() == (1, "b")
    assert post.asked(), "its last item is in hand: the next ones are on their way meanwhile"


def test_quick_items_are_asked_for_in_numbers_and_slow_ones_one_by_one(post: Post) -> None:
    for seconds, least, most in ((1e-5, 10, MAX_REQUEST), (1.0, 1, 1)):
        for _ in range(50):
            post.inbox.note_duration(seconds)
        post.inbox._request()
        assert least <= post.wanted() <= most
        post.send((0, 0, "x"))
        assert post.take() == (0, "x")
        post.wanted()
        post.inbox._requested = False


def test_an_item_is_begun_before_anybody_gets_a_later_one(post: Post) -> None:
    post.send((4, 0, "a"), (5, 0, "b"))
    post.take()
    assert post.begun == [4]
    post.take()
    assert post.begun == [4, 5]


def test_items_of_the_next_epoch_wait_for_it(post: Post) -> None:
    post.send((0, 3, "a"), (2, 4, "b"))
    assert post.take(3) == (0, "a")
    assert post.take(3) is None
    assert post.take(4) == (2, "b")


def test_large_items_are_mapped_and_leave_no_descriptor(post: Post) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for ticket in range(20):
        post.send((ticket, 0, np.full(100_000, ticket)), large=True)
        _, array = post.take()
        assert (array == ticket).all() and not array.flags.owndata
        post.wanted()
        del array  # a mapping keeps a descriptor of its own
    assert len(os.listdir("/proc/self/fd")) == before


def test_stop_ends_a_wait(post: Post) -> None:
    os.write(post.say_stop, b"!")
    with pytest.raises(Stopped):
        post.take()


@pytest.mark.parametrize("wait", [Post.take, lambda post: post.inbox.admit(1)])
def test_the_end_of_the_trainer_ends_a_wait(post: Post, wait: Callable[[Post], Any]) -> None:
    post.trainer.shutdown(socket.SHUT_WR)
    with pytest.raises(Stopped):
        wait(post)


def test_who_may_begin_does_not_wait_for_who_may_not(post: Post) -> None:
    """Not even for one that was as far, and went on to the next epoch meanwhile."""
    waits = [
        threading.Thread(target=lambda last=last: [post.inbox.admit(n) for n in range(1, last)])
        for last in (2, 2, 3, 3)
    ]
    for thread in waits:
        thread.start()
    assert post.inbox.admit(0)
    for allowed, ended in ((2, waits[:2]), (3, waits)):
        post.trainer.send(REPLY.pack(b"A", allowed))
        for thread in ended:
            thread.join(LONG_S)
        assert not any(thread.is_alive() for thread in ended)


def test_several_producers_share_the_items_without_loss() -> None:
    post, found = Post(threads=3), []

    def produce() -> None:
        while (item := post.take()) is not None:
            found.append(item[0])

    producers = [threading.Thread(target=produce) for _ in range(3)]
    for producer in producers:
        producer.start()
    for start in range(0, 100, 5):
        assert post.wanted() >= 3
        post.send(*((t, 0, t) for t in range(start, start + 5)))
    post.wanted()
    post.end()
    for producer in producers:
        producer.join(LONG_S)
    post.close()
    assert sorted(found) == list(range(100))
