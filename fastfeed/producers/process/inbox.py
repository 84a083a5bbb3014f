"""Orders from the trainer: where the source has one order, the trainer reads it and sends its items
to workers."""

from __future__ import annotations

import heapq
import os
import pickle
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from fastfeed.core.worker import Worker
from fastfeed.producers.process.outlet import RingOutlet
from fastfeed.producers.process.ship import unpack
from fastfeed.ring.memory import receive
from fastfeed.ring.writer import Stopped
from fastfeed.source import Item, ItemReader

REQUEST = struct.Struct("<I")  # number of items wanted
# b"I": items (ticket, epoch, payload) follow. b"F": they lie in the descriptor, that many bytes.
# b"E": there are no more.
ORDER = struct.Struct("<cq")
ALLOWED = struct.Struct("<q")  # where no items are sent: how many epochs may be begun
INLINE_NBYTES = 2**15
# a worker prefetches items for this time: more would wait for it instead of for another worker
BUSY_S = 0.01
MOST = 64
WAIT_MS = 1000


class Inbox:
    """The items that this worker's producers make next."""

    def __init__(self, work: socket.socket, stop: int, *, threads: int) -> None:
        self._work = work
        self._stop = stop
        self._threads = threads
        self._lock = threading.Lock()
        # a heap: the item with the lowest ticket is waited for
        self._items: list[tuple[int, int, Any, int]] = []
        self._asked = False
        self._ended = False
        self._item_s = BUSY_S
        self._poll = select.poll()
        self._poll.register(work, select.POLLIN)
        self._poll.register(stop, select.POLLIN)

    def take(self, epoch: int, begin: Callable[[int], None]) -> Item | None:
        """Return the item with the lowest ticket, after `begin` was called with it; None when this
        epoch has no more. Raise Stopped."""
        with self._lock:
            while not self._items and not self._ended:
                self._ask()
                self._receive()
            if not self._items or self._items[0][1] > epoch:
                return None
            ticket, _, payload, number = heapq.heappop(self._items)
            # still under the lock, so that no other producer gets a later ticket before
            begin(ticket)
            if len(self._items) < self._threads:
                self._ask()  # so that the answer is there when it is needed
            return Item(ticket, payload, number)

    def admit(self, position: int) -> bool:
        """Return True if there can be more items: the trainer sends none of epochs that may not be
        begun."""
        return not self._ended or bool(self._items)

    def made(self, seconds: float) -> None:
        """Note how long one item took."""
        self._item_s += 0.2 * (seconds - self._item_s)

    def _ask(self) -> None:
        if not self._asked and not self._ended:
            self._asked = True
            wanted = int(BUSY_S / max(self._item_s, 1e-6)) * self._threads
            try:
                self._work.send(REQUEST.pack(max(self._threads, min(MOST, wanted))))
            except ConnectionError:  # the trainer is gone
                raise Stopped from None

    def _receive(self) -> None:
        ready = dict(self._poll.poll(WAIT_MS))
        if self._stop in ready:
            raise Stopped
        if not ready:
            return
        data, fds = receive(self._work, ORDER.size + INLINE_NBYTES, fds=1)
        if not data:  # the trainer is gone
            raise Stopped
        kind, nbytes = ORDER.unpack_from(data)
        self._asked = False
        if kind == b"E":
            self._ended = True
            return
        items = pickle.loads(data[ORDER.size :]) if kind == b"I" else _unpack(fds[0], nbytes)
        for item in items:
            heapq.heappush(self._items, tuple(item))


def _unpack(fd: int, nbytes: int) -> Any:
    try:
        return unpack(fd, nbytes)
    finally:
        os.close(fd)


class EpochPermit:
    """How many epochs may be begun, as the trainer says, where every producer has a stream of its
    own."""

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
        """Wait until the epoch at `position` may be begun; one producer reads the orders for all.
        Raise Stopped."""
        with self._changed:
            while position >= self._allowed:
                if self._polling:
                    self._changed.wait(WAIT_MS / 1000)
                    continue
                self._polling = True
                self._changed.release()
                try:
                    heard = self._listen()
                finally:
                    self._changed.acquire()
                    self._polling = False
                    self._changed.notify_all()
                self._allowed = max(self._allowed, heard)
        return True

    def _listen(self) -> int:
        ready = dict(self._poll.poll(WAIT_MS))
        if self._stop in ready:
            raise Stopped
        if not ready:
            return 0
        data = self._work.recv(ALLOWED.size)
        if not data:  # the trainer is gone
            raise Stopped
        return int(ALLOWED.unpack(data)[0])


class InboxSource:
    """The worker's half of an ordered source: order and payloads come from the inbox, items from
    `source`."""

    ordered = True
    again = True
    shipped = None

    def __init__(self, source: ItemReader, inbox: Inbox, *, outlet: RingOutlet) -> None:
        self.indexed = source.indexed
        self.records = source.records
        self.fetch = source.fetch
        self.draw_key = source.draw_key
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
            self._inbox.made(time.perf_counter() - now)
