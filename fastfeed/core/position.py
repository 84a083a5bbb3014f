"""The consumer's position in a stream: the items it has received, in any order and across batches.

An item is what a source gives under one number: a batch, or the records of one batch. A stream is
one numbered sequence of items: the source's only one (`ONLY_STREAM`), or one for each producer of a
callable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

ONLY_STREAM = -1
ALL_DONE = 2**62  # no item has this number: all items of an epoch are delivered
MAX_LOG_ENTRIES = 4096  # log entries that are kept before they are settled


@dataclass(frozen=True)
class StreamStart:
    """The items of a stream that its first epoch still has to produce.

    These are all items from `next` on, except those in `done`. `part` gives the number of records
    of an item that were delivered already. `again` lists earlier items that must be produced once
    more, first. `rest` are ranges of positions in the epoch's order, of which alone the items are
    made; None: all positions.
    """

    next: int = 0
    done: frozenset[int] = frozenset()
    part: dict[int, int] = field(default_factory=dict)
    again: tuple[int, ...] = ()
    rest: Sequence[Sequence[int]] | None = None

    def numbers(self) -> Iterator[int]:
        """Yield the items to produce, without end."""
        yield from self.again
        yield from (n for n in count(self.next) if n not in self.done)

    def wants(self, number: int) -> bool:
        """Return True if an item is to be produced."""
        return number in self.again or (number >= self.next and number not in self.done)

    @property
    def gaps(self) -> tuple[int, ...]:
        """For each item of `done`, in order: how many items are produced before its place."""
        before = self.next - len(self.again)
        return tuple(number - before - at for at, number in enumerate(sorted(self.done)))

    @property
    def first(self) -> int:
        """The lowest item to produce."""
        return min((self.next, *self.again))


FROM_THE_START = StreamStart()


class Position:
    """Tracks delivered items.

    Call `arrived` and `end_epoch` in the order of arrival, and `delivered` as records leave in that
    order.
    """

    def __init__(
        self,
        epoch: int,
        starts: dict[int, StreamStart] | None = None,
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
        self._rests = {n: s.rest for n, s in (starts or {}).items() if s.rest is not None}
        # (stream, item, records); the end of an epoch has item -1
        self._log: deque[tuple[int, int, int]] = deque()
        self._head_rows = 0  # records of the log's first entry that were delivered
        self._unsettled = 0  # records that were delivered and are not settled yet
        self.batches, self.records = counts

    def arrived(self, stream: int, item: int, *, rows: int) -> None:
        """Note an item whose `rows` new records will be delivered after all earlier ones."""
        self._log.append((stream, item, rows))

    def end_epoch(self) -> None:
        """Note that everything that arrives from now on belongs to the next epoch."""
        self._log.append((0, -1, 0))

    def delivered(self, rows: int, batches: int = 1) -> None:
        """Note that `rows` records were delivered, in so many batches."""
        self.batches += batches
        self.records += rows
        self._unsettled += rows
        if len(self._log) > MAX_LOG_ENTRIES:
            self._settle()

    def shuffled(self, rows: int) -> None:
        """Note a batch whose records left in another order; only their number is known."""
        self.batches += 1
        self.records += rows
        if len(self._log) > MAX_LOG_ENTRIES:
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

    @property
    def waits_for_others(self) -> bool:
        """True while only other ranks of the job hold batches; never without a job."""
        return False

    def commit(self) -> None:
        """Do nothing: no other rank needs to know."""

    def close(self, *, failed: bool = False) -> None:
        """Do nothing: there is no job to leave."""

    def state(self) -> dict[str, Any]:
        """Return the position as JSON.

        It has the epoch and, for each stream, the lowest item not delivered, the items delivered
        beyond it, and the partly delivered ones.
        """
        self._settle()
        parts = dict(self._part)
        if self._head_rows:
            stream, item, _ = self._log[0]
            parts[stream, item] = parts.get((stream, item), 0) + self._head_rows
        streams: dict[str, Any] = {}
        for stream in sorted({*self._starts, *(s for s, _ in parts)}):
            following, done = self._starts.get(stream, (0, set()))
            part = {str(item): rows for (s, item), rows in sorted(parts.items()) if s == stream}
            streams[str(stream)] = {"next": following, "done": sorted(done), "part": part}
            if stream in self._rests:
                streams[str(stream)]["rest"] = self._rests[stream]
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
            left = rows - self._head_rows
            if left > self._unsettled:
                self._head_rows += self._unsettled
                self._unsettled = 0
                return
            self._unsettled -= left
            self._head_rows = 0
            log.popleft()
            if item < 0:
                self.epoch += 1
                self._starts.clear()
                self._rests.clear()
                self._part.clear()
            else:
                self._mark_delivered(stream, item)

    def _mark_delivered(self, stream: int, item: int) -> None:
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


def starts_of(state: Mapping[str, Any]) -> dict[int, StreamStart]:
    """Return the start of every stream from a `Position.state`."""
    return {
        int(stream): StreamStart(
            saved["next"],
            frozenset(saved["done"]),
            {int(item): rows for item, rows in saved["part"].items()},
            rest=saved.get("rest"),
        )
        for stream, saved in state["streams"].items()
    }
