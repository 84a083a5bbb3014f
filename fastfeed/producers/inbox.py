"""What the consumer sends to producers: how many epochs may begin, and in a worker its items."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastfeed.core.status import IDLE, waiting
from fastfeed.core.worker import Worker
from fastfeed.producers.builder import Outlet
from fastfeed.producers.reorder import STOP_CHECK_S
from fastfeed.ring.writer import Stopped
from fastfeed.source import Item, ItemReader

SentItem = tuple[int, int, Any, int]  # ticket, epoch, payload, number in the epoch


@dataclass(frozen=True)
class EpochPlan:
    """Plan of a feed's epochs: the root seed, the range of all epochs, and how many of them may
    begin before `allow` raises that number. What was delivered of the first epoch in an earlier
    run: `passed` holds the items of each stream of a callable, and `gaps` those of a source of one
    order, as `StreamStart` does."""

    seed: int
    epochs: range
    allowed: int
    passed: tuple[int, ...] = ()
    gaps: tuple[int, ...] = ()


class EpochPermit:
    """Permit for epochs to begin: the consumer calls `allow` when it is sure to want them,
    producers wait in `admit`, and any thread may call `stop`."""

    def __init__(self, allowed: int) -> None:
        self.stopped = False
        self._allowed = allowed
        self._changed = threading.Condition()

    def allow(self, epochs: int) -> None:
        """Set how many epochs in all may begin."""
        with self._changed:
            self._allowed = max(self._allowed, epochs)
            self._changed.notify_all()

    def stop(self) -> None:
        """Have every call raise Stopped. A signal handler may call this inside `allow`: the waits
        then check by themselves."""
        self.stopped = True
        if self._changed.acquire(timeout=0):
            self._changed.notify_all()
            self._changed.release()

    def admit(self, position: int) -> bool:
        """Wait until the epoch at `position` may begin. Return False if none will. Raise
        Stopped."""
        if position >= self._allowed:
            with self._changed, waiting(IDLE):
                while position >= self._allowed and not self.stopped:
                    self._receive()
        if self.stopped:
            raise Stopped
        return True

    def _receive(self) -> None:
        """Wait for a change, with the lock, for a short time at most. Raise Stopped."""
        self._changed.wait(STOP_CHECK_S)


class Inbox(EpochPermit):
    """Items that the trainer has dispatched to this worker; or, for producers with streams of
    their own, only its permits."""

    def __init__(self, *, allowed: int) -> None:
        super().__init__(allowed)
        self.change: Callable[[memoryview], Any] = id  # applies those of the data set
        self._items: list[SentItem] = []  # a heap: the consumer waits for the lowest ticket
        self._received = 0
        self._total: int | None = None  # once it is known

    def put(self, items: Sequence[SentItem]) -> None:
        """Add items."""
        with self._changed:
            for item in items:
                heapq.heappush(self._items, tuple(item))
            self._received += len(items)
            self._changed.notify_all()

    def end(self, total: int) -> None:
        """Note that there are no more than `total` items, some of which may still come."""
        with self._changed:
            self._total = total
            self._changed.notify_all()

    def take(self, epoch: int, begin: Callable[[int], None]) -> Item | None:
        """Return the item with the lowest ticket, after calling `begin` with it, or None if this
        epoch has no more. Raise Stopped."""
        with self._changed:
            while not (self._items or self._ended or self.stopped):
                self._request()
                self._receive()
            if self.stopped:
                raise Stopped
            if not self._items or self._items[0][1] > epoch:
                return None
            ticket, _, payload, number = heapq.heappop(self._items)
            begin(ticket)  # with the lock, so that no producer gets a later ticket before
            self._request()  # so that the answer is there when it is needed
        return Item(ticket, payload, number)

    def admit(self, position: int) -> bool:
        """Wait until the epoch at `position` may begin. Return False if there are no more items.
        Raise Stopped."""
        return super().admit(position) and (bool(self._items) or not self._ended)

    @property
    def empty(self) -> bool:
        """True if `take` would wait."""
        return not self._items

    def note_duration(self, seconds: float) -> None:
        """Note how long one item took."""

    def _request(self) -> None:
        """Request items, if they do not come by themselves. With the lock."""

    @property
    def _ended(self) -> bool:
        return self._total is not None and self._received >= self._total


class InboxSource:
    """The worker's half of an ordered source: order and payloads come through the inbox."""

    ordered = True
    repeatable = True

    def __init__(self, reader: ItemReader, inbox: Inbox, *, outlet: Outlet) -> None:
        self.reader = reader
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
