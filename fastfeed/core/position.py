"""The position of the consumer in a stream: which items were delivered, also if they arrive out of
order or straddle batches.

An item is what a source gives under one number: a batch, or the records of one. A stream is one
numbered sequence of items: the source's only one (`ONLY`), or one for each producer of a callable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

ONLY = -1
DONE = 2**62  # no item has this number: all of an epoch was delivered
SETTLE = 4096  # arrivals that are kept before they are settled


@dataclass(frozen=True)
class Start:
    """Where a stream begins in its first epoch: with every item from `next` on, except those in
    `done`. `part`: records of an item that were delivered already. `again`: earlier items that are
    produced once more, first."""

    next: int = 0
    done: frozenset[int] = frozenset()
    part: dict[int, int] = field(default_factory=dict)
    again: tuple[int, ...] = ()

    def numbers(self) -> Iterator[int]:
        """Yield the items to produce, without end."""
        yield from self.again
        yield from (n for n in count(self.next) if n not in self.done)

    def wants(self, number: int) -> bool:
        """Return True if an item is to be produced."""
        return number in self.again or (number >= self.next and number not in self.done)

    @property
    def first(self) -> int:
        """The lowest item to produce."""
        return min((self.next, *self.again))


FROM_THE_START = Start()


class Position:
    """What the consumer has had. `arrived` and `end_epoch` are called in the order of arrival,
    `delivered` as the records leave in that same order."""

    def __init__(
        self,
        epoch: int,
        starts: dict[int, Start] | None = None,
        *,
        counts: tuple[int, int] = (0, 0),
    ) -> None:
        self.epoch = epoch
        self._starts = {stream: (s.next, set(s.done)) for stream, s in (starts or {}).items()}
        self._part = {
            (stream, item): rows
            for stream, s in (starts or {}).items()
            for item, rows in s.part.items()
        }
        # stream, item, records; the end of an epoch has item -1
        self._log: deque[tuple[int, int, int]] = deque()
        self._head = 0  # records of the log's first entry that were delivered
        self._owed = 0  # records delivered and not settled yet
        self.batches, self.records = counts
        self.resumed = any(counts)  # True if something was delivered before

    def arrived(self, stream: int, item: int, *, rows: int) -> None:
        """Note an item whose `rows` records (those not delivered before) leave after all that
        arrived earlier."""
        self._log.append((stream, item, rows))

    def end_epoch(self) -> None:
        """Note that later arrivals are of the next epoch."""
        self._log.append((0, -1, 0))

    def delivered(self, rows: int, batches: int = 1) -> None:
        """Note that `rows` records have left, in `batches` batches."""
        self.batches += batches
        self.records += rows
        self._owed += rows
        if len(self._log) > SETTLE:
            self._settle()

    def shuffled(self, rows: int) -> None:
        """Note that a batch has left whose records came in another order: only their number is
        known."""
        self.batches += 1
        self.records += rows
        if len(self._log) > SETTLE:
            self._settle()

    def dropped(self, rows: int) -> None:
        """Note that the last `rows` records that arrived will never be delivered."""
        for at in range(len(self._log) - 1, -1, -1):
            if not rows:
                return
            stream, item, have = self._log[at]
            gone = min(rows, have)
            self._log[at] = stream, item, have - gone
            rows -= gone

    def state(self) -> dict[str, Any]:
        """Return as JSON the epoch, and for each stream the lowest item not delivered, those
        delivered beyond it, and items that were delivered in part."""
        self._settle()
        parts = dict(self._part)
        if self._head:
            stream, item, _ = self._log[0]
            parts[stream, item] = parts.get((stream, item), 0) + self._head
        streams: dict[str, Any] = {}
        for stream in sorted({*self._starts, *(s for s, _ in parts)}):
            following, done = self._starts.get(stream, (0, set()))
            part = {str(item): rows for (s, item), rows in sorted(parts.items()) if s == stream}
            streams[str(stream)] = {"next": following, "done": sorted(done), "part": part}
        return {
            "epoch": self.epoch,
            "batches": self.batches,
            "records": self.records,
            "streams": streams,
        }

    def _settle(self) -> None:
        log = self._log
        while log:
            stream, item, rows = log[0]
            left = rows - self._head
            if left > self._owed:
                self._head += self._owed
                self._owed = 0
                return
            self._owed -= left
            self._head = 0
            log.popleft()
            if item < 0:
                self.epoch += 1
                self._starts.clear()
                self._part.clear()
            else:
                self._had(stream, item)

    def _had(self, stream: int, item: int) -> None:
        following, done = self._starts.get(stream) or (0, set())
        self._part.pop((stream, item), None)
        if item == following:
            following += 1
            while following in done:
                done.remove(following)
                following += 1
        elif item > following:
            done.add(item)
        self._starts[stream] = following, done


def starts_of(state: Mapping[str, Any]) -> dict[int, Start]:
    """Return the starts of every stream from a `Position.state`."""
    return {
        int(stream): Start(
            int(s["next"]),
            frozenset(map(int, s["done"])),
            {int(item): int(rows) for item, rows in s["part"].items()},
        )
        for stream, s in state["streams"].items()
    }
