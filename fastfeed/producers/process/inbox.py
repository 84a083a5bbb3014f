"""The worker's side of the dispatch: items and permits that arrive from the trainer."""

from __future__ import annotations

import heapq
import pickle
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from fastfeed.core.worker import Worker
from fastfeed.producers.builder import Outlet
from fastfeed.producers.process.ship import unpack_from
from fastfeed.ring.memory import Segment, receive
from fastfeed.ring.writer import Stopped
from fastfeed.source import Item, ItemReader

REQUEST = struct.Struct("<I")  # number of items wanted
# b"I": so many items (ticket, epoch, payload, number) follow. b"F": they lie in the descriptor, in
# so many bytes. b"E": there are no more.
REPLY = struct.Struct("<cq")
ALLOWED = struct.Struct("<q")  # without dispatch: how many epochs may begin
INLINE_NBYTES = 2**15
# A worker requests items in advance for this time. More would wait here instead of going to another
# worker.
REQUEST_AHEAD_S = 0.01
MAX_REQUEST = 64
ITEM_POLL_MS = 1000


class ItemQueue(Protocol):
    """Items that the trainer has dispatched to this worker."""

    def take(self, epoch: int, begin: Callable[[int], None]) -> Item | None:
        """Return the item with the lowest ticket, after calling `begin` with it, or None if this
        epoch has no more. Raise Stopped."""

    def note_duration(self, seconds: float) -> None:
        """Note how long one item took."""


class WorkerOutlet(Outlet, Protocol):
    """Outlet of a producer in a worker, whose items the trainer dispatches."""

    def begin(self, ticket: int) -> None:
        """Note the ticket of this producer."""

    def compare(self, stream: int, item: int, *, digest: int) -> None:
        """Send the digest of a stream's first item, before its first batch."""


class Inbox:
    """Items that this worker's producers process next."""

    def __init__(self, work: socket.socket, stop: int, *, threads: int) -> None:
        self._work = work
        self._stop = stop
        self._threads = threads
        self._lock = threading.Lock()
        # A heap: the consumer waits for the lowest ticket.
        self._items: list[tuple[int, int, Any, int]] = []
        self._requested = False
        self._ended = False
        self._item_s = REQUEST_AHEAD_S
        self._poll = select.poll()
        self._poll.register(work, select.POLLIN)
        self._poll.register(stop, select.POLLIN)

    def take(self, epoch: int, begin: Callable[[int], None]) -> Item | None:
        """Return the item with the lowest ticket, after calling `begin` with it, or None if this
        epoch has no more. Raise Stopped."""
        with self._lock:
            while not self._items and not self._ended:
                self._request()
                self._receive()
            if not self._items or self._items[0][1] > epoch:
                return None
            ticket, _, payload, number = heapq.heappop(self._items)
            begin(ticket)  # still under the lock, so that no producer gets a later ticket before
            if len(self._items) < self._threads:
                self._request()  # so that the answer is there when it is needed
            return Item(ticket, payload, number)

    def admit(self, position: int) -> bool:
        """Return True if there can be more items. The trainer dispatches none of epochs that may
        not begin."""
        return not self._ended or bool(self._items)

    def note_duration(self, seconds: float) -> None:
        """Note how long one item took."""
        self._item_s += 0.2 * (seconds - self._item_s)

    def _request(self) -> None:
        if not self._requested and not self._ended:
            self._requested = True
            wanted = int(REQUEST_AHEAD_S / max(self._item_s, 1e-6)) * self._threads
            try:
                self._work.send(REQUEST.pack(max(self._threads, min(MAX_REQUEST, wanted))))
            except ConnectionError:  # the trainer is gone
                raise Stopped from None

    def _receive(self) -> None:
        ready = dict(self._poll.poll(ITEM_POLL_MS))
        if self._stop in ready:
            raise Stopped
        if not ready:
            return
        data, fds = receive(self._work, REPLY.size + INLINE_NBYTES, fds=1)
        if not data:  # the trainer is gone
            raise Stopped
        kind, nbytes = REPLY.unpack_from(data)
        self._requested = False
        if kind == b"E":
            self._ended = True
            return
        if kind == b"I":
            items = pickle.loads(data[REPLY.size :])
        else:
            items = unpack_from(memoryview(Segment.received(fds, nbytes, writable=False).map))
        for item in items:
            heapq.heappush(self._items, tuple(item))


class EpochPermit:
    """Gate for producers with streams of their own: the trainer only sends how many epochs may
    begin."""

    def __init__(self, work: socket.socket, stop: int, *, allowed: int) -> None:
        self._work = work
        self._allowed = allowed
        self._changed = threading.Condition()
        self._polling = False
        self._stop = stop
        self._poll = select.poll()
        self._poll.register(work, select.POLLIN)
        self._poll.register(stop, select.POLLIN)

    def admit(self, position: int) -> bool:
        """Wait until the epoch at `position` may begin. One producer receives the messages, and
        wakes the others. Raise Stopped."""
        with self._changed:
            while position >= self._allowed:
                if self._polling:
                    self._changed.wait(ITEM_POLL_MS / 1000)
                    continue
                self._polling = True
                self._changed.release()
                try:
                    allowed = self._listen()
                finally:
                    self._changed.acquire()
                    self._polling = False
                    self._changed.notify_all()
                self._allowed = max(self._allowed, allowed)
        return True

    def _listen(self) -> int:
        ready = dict(self._poll.poll(ITEM_POLL_MS))
        if self._stop in ready:
            raise Stopped
        if not ready:
            return 0
        data = self._work.recv(ALLOWED.size)
        if not data:  # the trainer is gone
            raise Stopped
        return int(ALLOWED.unpack(data)[0])


class InboxSource:
    """The worker's half of an ordered source: order and payloads come through the inbox, and
    `source` fetches the items."""

    ordered = True
    repeatable = True
    shipped = None

    def __init__(self, source: ItemReader, inbox: ItemQueue, *, outlet: WorkerOutlet) -> None:
        self.indexed = source.indexed
        self.records = source.records
        self.fetch = source.fetch
        self.draw_key = source.draw_key
        self.fetch_all = source.fetch_all
        self.gather = source.gather
        self._inbox = inbox
        self._outlet = outlet

    def open(self, worker: Worker) -> Iterator[Item]:
        """Yield one item after another."""
        while True:
            start = time.perf_counter()
            item = self._inbox.take(worker.epoch, self._outlet.begin)
            if item is None:
                return
            now = time.perf_counter()
            self._outlet.row.wait_in_s += now - start
            yield item
            self._inbox.note_duration(time.perf_counter() - now)
