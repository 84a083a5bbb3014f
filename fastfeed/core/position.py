"""Where the consumer is in a stream: which items it has had, also where they do not come in order
or straddle batches.

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
DONE = 2**62  # no item has this number: all of an epoch were had
SETTLE = 4096  # so many arrivals are kept before they are worked off


@dataclass(frozen=True)
class Start:
    """Where a stream begins in its first epoch: every item from `next` on but those in `done`;
    `part` says how many records of an item were had already; `again` are earlier items that must be
    made once more, first."""

    next: int = 0
    done: frozenset[int] = frozenset()
    part: dict[int, int] = field(default_factory=dict)
    again: tuple[int, ...] = ()

    def numbers(self) -> Iterator[int]:
        """The items to make, for ever."""
        yield from self.again
        yield from (n for n in count(self.next) if n not in self.done)

    def wants(self, number: int) -> bool:
        """Whether an item is to be made."""
        return number in self.again or (number >= self.next and number not in self.done)

    @property
    def first(self) -> int:
        """The lowest item to make."""
        return min((self.next, *self.again))


FROM_THE_START = Start()


class Position:
    """`arrived` and `end_epoch` in the order of arrival, `delivered` as the records leave in that
    same order."""

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
        # stream, item, records; an epoch's end has stream None
        self._log: deque[tuple[int, int, int]] = deque()
        self._head = 0  # records of the log's first entry that were delivered
        self._owed = 0  # records delivered and not yet worked off
        self.batches, self.records = counts
        self.resumed = any(counts)  # whether something was had before

    def arrived(self, stream: int, item: int, *, rows: int) -> None:
        """An item whose `rows` records (those not had before) will be delivered after all that came
        earlier."""
        self._log.append((stream, item, rows))

    def end_epoch(self) -> None:
        """What arrives from now on is of the next epoch."""
        self._log.append((0, -1, 0))

    def delivered(self, rows: int, batches: int = 1) -> None:
        """So many records have left, in so many batches."""
        self.batches += batches
        self.records += rows
        self._owed += rows
        if len(self._log) > SETTLE:
            self._settle()

    def shuffled(self, rows: int) -> None:
        """A batch has left whose records came in another order: only their number is known."""
        self.batches += 1
        self.records += rows
        if len(self._log) > SETTLE:
            self._settle()

    def dropped(self, rows: int) -> None:
        """The last `rows` records that arrived will never be delivered."""
        for at in range(len(self._log) - 1, -1, -1):
            if not rows:
                return
            stream, item, have = self._log[at]
            gone = min(rows, have)
            self._log[at] = stream, item, have - gone
            rows -= gone

    def state(self) -> dict[str, Any]:
        """As JSON: the epoch, and for each stream the lowest item not had, those had beyond it, and
        partly had ones."""
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
    """The starts of every stream, out of a `Position.state`."""
    return {
        int(stream): Start(
            int(s["next"]),
            frozenset(map(int, s["done"])),
            {int(item): int(rows) for item, rows in s["part"].items()},
        )
        for stream, s in state["streams"].items()
    }
