"""The actor's side of the dispatch: items and permits, which arrive by calls of the trainer."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Sequence
from typing import Any

from fastfeed.producers.epoch_gate import EpochGate
from fastfeed.ring.writer import Stopped
from fastfeed.source import Item


class RemoteInbox:
    """Items that the producer of an actor processes next."""

    def __init__(self) -> None:
        self.stopped = False
        self._items: list[tuple[int, int, Any, int]] = []  # a heap: the lowest ticket comes first
        self._received = 0
        self._total: int | None = None  # once it is known
        self._changed = threading.Condition()

    def put(self, items: Sequence[tuple[int, int, Any, int]]) -> None:
        """Add items: ticket, epoch, payload, number in the epoch."""
        with self._changed:
            for item in items:
                heapq.heappush(self._items, tuple(item))
            self._received += len(items)
            self._changed.notify()

    def end(self, total: int) -> None:
        """Note that there are no more than `total` items, some of which may still come."""
        with self._changed:
            self._total = total
            self._changed.notify()

    @property
    def _ended(self) -> bool:
        return self._total is not None and self._received >= self._total

    def stop(self) -> None:
        """Have every call raise Stopped: the trainer is gone."""
        with self._changed:
            self.stopped = True
            self._changed.notify()

    @property
    def empty(self) -> bool:
        """True if the producer would wait."""
        return not self._items

    def take(self, epoch: int, begin: Callable[[int], None]) -> Item | None:
        """Return the item with the lowest ticket, after calling `begin` with it, or None if this
        epoch has no more. Raise Stopped."""
        with self._changed:
            while not (self._items or self._ended or self.stopped):
                self._changed.wait()
            if self.stopped:
                raise Stopped
            if not self._items or self._items[0][1] > epoch:
                return None
            ticket, _, payload, number = heapq.heappop(self._items)
        begin(ticket)
        return Item(ticket, payload, number)

    def admit(self, position: int) -> bool:
        """Return True if there can be more items."""
        return not self._ended or bool(self._items)

    def note_duration(self, seconds: float) -> None:
        """Do nothing: the trainer sees how fast batches come."""


class RemotePermit(EpochGate):
    """Gate for a producer with a stream of its own."""

    empty = False  # a callable's next item is not known to be slow

    @property
    def stopped(self) -> bool:
        """True if the trainer is gone."""
        return self._closed

    def stop(self) -> None:
        """Have `admit` raise Stopped: the trainer is gone."""
        self.close()

    def admit(self, position: int) -> bool:
        """Wait until the epoch at `position` may begin. Raise Stopped."""
        if not super().admit(position):
            raise Stopped
        return True
