"""Dispatch among workers that ask, return and die in any order: each item is delivered exactly
once."""

from __future__ import annotations

import os
import pickle
import select
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfeed import FeedOptions, OptionError, ProducerError
from fastfeed.producers.inbox import EpochPlan
from fastfeed.producers.process import dispatch
from fastfeed.producers.process.dispatch import Dispatcher, read
from fastfeed.producers.process.ship import unpack
from fastfeed.producers.process.work_socket import INLINE_NBYTES, REPLY, REQUEST
from fastfeed.producers.reorder import END_OF_EPOCH, ReorderBuffer
from fastfeed.source import source_from
from tests.helpers.dying import until
from tests.helpers.feeds import LONG_S, Broken, Readable, broken_after


class Trainer:
    """A dispatcher and the buffer that it fills; the test plays all its workers."""

    def __init__(
        self, source: Any, *, ordered: bool = True, window: int = 0, **options: Any
    ) -> None:
        settings = FeedOptions(processes=1, **options)
        self.lock = threading.Lock()
        self.order: ReorderBuffer[Any] = ReorderBuffer(1, ordered=ordered, window=window)
        self.woken = threading.Event()
        epochs = settings.epochs or 1
        deals = read(
            source_from(source, settings),
            EpochPlan(0, range(epochs), epochs),
            allowed=lambda: epochs,
        )
        self.dispatcher = Dispatcher(deals, self.order, lock=self.lock, wake=self.woken.set)
        self.sockets: dict[int, tuple[socket.socket, socket.socket]] = {}
        self.has: dict[int, dict[int, Any]] = {}
        self.dispatcher.start()

    def hire(self, worker: int, inherits: Any = ()) -> None:
        self.sockets[worker] = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.has[worker] = {}
        with self.lock:
            self.dispatcher.attach(worker, self.sockets[worker][0], inherits=inherits)

    def ask(self, worker: int, count: int = 1) -> None:
        self.sockets[worker][1].send(REQUEST.pack(count))

    def answer(self, worker: int) -> list[tuple[int, int, Any]] | None:
        """Return the items, which must come, or None for the end."""
        theirs = self.sockets[worker][1]
        assert select.select([theirs], [], [], LONG_S)[0], "no answer comes"
        data, fds, _, _ = socket.recv_fds(theirs, REPLY.size + INLINE_NBYTES, 1)
        kind, nbytes = REPLY.unpack_from(data)
        if kind == b"E":
            return None
        items = pickle.loads(data[REPLY.size :]) if kind == b"I" else unpack(fds[0], nbytes)
        for fd in fds:
            os.close(fd)
        self.has[worker].update((ticket, payload) for ticket, _, payload, _ in items)
        return list(items)

    def come_back(self, worker: int, ticket: int) -> None:
        """Return an item like the arrival of a worker's batch."""
        payload = self.has[worker].pop(ticket)
        with self.lock:
            position = self.dispatcher.item_of(worker, ticket).position
            key = ticket if self.order.ordered else position
            self.order.insert(payload, key, epoch=position)
            self.dispatcher.received(worker, ticket)

    def die(self, worker: int) -> Any:
        lost = self.has.pop(worker)
        with self.lock:
            for end in self.sockets.pop(worker):
                end.close()
            deals = self.dispatcher.detach(worker)
        assert set(lost) <= {d.ticket for d in deals}
        return deals

    def close(self) -> None:
        self.dispatcher.stop()
        for worker in list(self.sockets):
            self.die(worker)
        assert self.dispatcher.join(LONG_S)


@pytest.fixture
def trainers() -> Iterator[Any]:
    made: list[Trainer] = []

    def make(*args: Any, **options: Any) -> Trainer:
        made.append(Trainer(*args, **options))
        return made[-1]

    yield make
    for trainer in made:
        trainer.close()


def test_a_source_that_fails_has_no_end_for_the_next_worker_that_asks(trainers: Any) -> None:
    """Its iterator has none left behind the error."""
    trainer, ends = trainers(Readable(broken_after(0))), []
    trainer.order.end = lambda: ends.append("an end")
    workers = [0, 1]
    for worker in workers:  # the dispatcher finds both requests at once
        trainer.sockets[worker] = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        trainer.has[worker] = {}
        trainer.ask(worker)
    with trainer.lock:
        for worker in workers:
            trainer.dispatcher.attach(worker, trainer.sockets[worker][0])
    until(lambda: trainer.order.failure, "the failure")
    assert isinstance(trainer.order.failure.error.__cause__, Broken) and not ends


@pytest.mark.slow
@settings(max_examples=60)
@given(
    data=st.data(),
    total=st.integers(0, 25),
    epochs=st.integers(1, 2),
    window=st.sampled_from([None, 0, 3]),
)
def test_each_item_comes_back_exactly_once(
    data: st.DataObject, total: int, epochs: int, window: int | None
) -> None:
    order: dict[str, Any] = {"ordered": window is not None, "window": window or 0}
    trainer = Trainer(Readable(lambda: range(total)), epochs=epochs, **order)
    names, unread, waiting, inherited = iter(range(2, 1000)), total * epochs, set(), {0: 0, 1: 0}
    patch = pytest.MonkeyPatch()
    # The number of items in a reply must not depend on the machine's speed.
    patch.setattr(dispatch, "MAX_READ_S", LONG_S)
    try:
        for worker in (0, 1):
            trainer.hire(worker)
        while unread or any(trainer.has.values()) or any(inherited.values()):
            worker = data.draw(st.sampled_from(sorted(trainer.has)))
            act = data.draw(st.sampled_from(["ask", "return", "return", "die"]))
            if act == "ask" and worker not in waiting:
                trainer.ask(worker, data.draw(st.integers(1, 5)))
                waiting.add(worker)
                if inherited[worker] or unread:
                    items = trainer.answer(worker)
                    assert items
                    waiting.remove(worker)
                    unread -= 0 if inherited[worker] else len(items)
                    inherited[worker] = max(0, inherited[worker] - len(items))
            elif act == "return" and trainer.has[worker]:
                trainer.come_back(worker, data.draw(st.sampled_from(sorted(trainer.has[worker]))))
            elif act == "die":
                lost, heir = trainer.die(worker), next(names)
                assert [d.ticket for d in lost] == sorted(d.ticket for d in lost)
                trainer.hire(heir, lost)
                inherited.pop(worker)
                inherited[heir] = len(lost)
                waiting.discard(worker)
        for worker in trainer.has:
            if worker not in waiting:
                trainer.ask(worker)
            assert trainer.answer(worker) is None, "whoever asks is told the end"
        with trainer.lock:
            assert trainer.order.settled()
            made = list(trainer.order.ready)
        each = [[p for p in part if p is not END_OF_EPOCH] for part in _split(made)]
        each = [part if window == 0 else sorted(part) for part in each]
        assert each == [list(range(total))] * epochs
    finally:
        patch.undo()
        trainer.close()


def _split(made: list[Any]) -> list[list[Any]]:
    parts: list[list[Any]] = [[]]
    for item in made:
        parts[-1].append(item)
        if item is END_OF_EPOCH:
            parts.append([])
    assert not parts[-1], "nothing comes after the last epoch"
    return parts[:-1]


def test_nobody_asks_nothing_is_read(trainers: Any) -> None:
    """The source's own code runs only when a worker can take the result."""
    seen: list[int] = []
    trainer = trainers(seen.append(i) or i for i in range(5))
    trainer.hire(0)
    assert not seen
    trainer.ask(0)
    assert trainer.answer(0) == [(0, 0, 0, 0)]


@pytest.mark.parametrize("nbytes", [10, INLINE_NBYTES - 100, INLINE_NBYTES, 200_000])
def test_items_of_any_size_arrive(trainers: Any, nbytes: int) -> None:
    trainer = trainers(iter([np.arange(nbytes, dtype=np.uint8), b"x" * nbytes]))
    trainer.hire(0)
    trainer.ask(0, 2)
    items: list[Any] = []
    while len(items) < 2:
        items += trainer.answer(0) or []
        trainer.ask(0, 1)
    assert [(ticket, epoch) for ticket, epoch, *_ in items] == [(0, 0), (1, 0)]
    assert items[0][2].tolist() == [i % 256 for i in range(nbytes)]
    assert items[1][2] == b"x" * nbytes


def test_an_item_that_cannot_be_sent_ends_the_feed(trainers: Any) -> None:
    trainer = trainers(iter([1, threading.Lock()]))
    trainer.hire(0)
    trainer.ask(0, 2)
    assert trainer.woken.wait(LONG_S)
    assert isinstance(trainer.order.failure.error, OptionError)
    assert "an item of the source cannot be sent" in str(trainer.order.failure.error)


def test_what_a_broken_source_gave_before_is_still_sent(trainers: Any) -> None:
    def stream() -> Iterator[int]:
        yield from range(3)
        raise Broken("the disk is gone")

    trainer = trainers(stream())
    trainer.hire(0)
    items: list[Any] = []
    while len(items) < 3:
        trainer.ask(0, 1)
        items += trainer.answer(0) or []
    trainer.ask(0, 1)
    assert [payload for *_, payload in items] == [0, 1, 2]
    assert trainer.woken.wait(LONG_S)
    failure = trainer.order.failure
    assert (failure.ticket, type(failure.error.__cause__)) == (3, Broken)
    assert isinstance(failure.error, ProducerError)
    assert str(failure.error).startswith("batch 3 raised Broken")


@pytest.fixture
def asked_for_more(trainers: Any) -> Iterator[Any]:
    """A dispatcher with an answer of one item, whose source makes it wait for the next one."""
    reached, go_on = threading.Event(), threading.Event()

    def stream() -> Iterator[Any]:
        yield "first"
        reached.set()
        go_on.wait(LONG_S)
        yield "second"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "MAX_READ_S", LONG_S)
        trainer = trainers(stream())
        trainer.hire(0)
        trainer.ask(0, 5)
        assert reached.wait(LONG_S)
        trainer.go_on = go_on
        yield trainer
        go_on.set()


def test_what_was_read_does_not_wait_for_the_next_item(asked_for_more: Any) -> None:
    """The source may wait for what the training does with the first item."""
    asked_for_more.dispatcher.pass_on()
    assert asked_for_more.answer(0) == [(0, 0, "first", 0)]
    asked_for_more.dispatcher.pass_on()  # there is nothing
    asked_for_more.go_on.set()
    asked_for_more.ask(0, 5)
    assert asked_for_more.answer(0) == [(1, 0, "second", 1)]


def test_what_was_read_for_a_worker_that_died_is_inherited(asked_for_more: Any) -> None:
    lost = asked_for_more.die(0)
    asked_for_more.dispatcher.pass_on()
    asked_for_more.go_on.set()
    asked_for_more.hire(1, lost)
    items: list[Any] = []
    while len(items) < 2:
        asked_for_more.ask(1, 5)
        items += asked_for_more.answer(1) or []
    assert [item[2] for item in items] == ["first", "second"]


def test_what_cannot_be_passed_on_ends_the_feed(
    asked_for_more: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(*_: Any) -> None:
        raise Broken("no descriptor is left")

    monkeypatch.setattr(dispatch, "send_items", send)
    asked_for_more.dispatcher.pass_on()
    assert asked_for_more.woken.is_set()
    assert isinstance(asked_for_more.order.failure.error.__cause__, Broken)


def test_stop_does_not_wait_for_the_users_code() -> None:
    reached, go_on = threading.Event(), threading.Event()

    def stream() -> Iterator[int]:
        reached.set()
        go_on.wait(LONG_S)
        yield 1

    trainer = Trainer(stream())
    try:
        trainer.hire(0)
        trainer.ask(0)
        assert reached.wait(LONG_S)
        trainer.dispatcher.stop()
        assert not trainer.dispatcher.join(0.05)
    finally:
        go_on.set()
        trainer.close()
