"""Counter of worker deaths: an item or record over which workers die repeatedly is to blame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fastfeed.ring.status_page import NO_ITEM

DEATHS_TO_BLAME = 2
# Signals from outside hit the same record now and then, the more so as a new worker begins with it.
ACCIDENTS_TO_BLAME = 6
# So many workers in a row that die before their first batch: another one will not do better.
# Repeated signals from outside prove less.
FRUITLESS_DEATHS, FRUITLESS_ACCIDENTS = 5, 20

# the item's ticket, and the record in the item's payload (-1: the item is one piece)
RecordKey = tuple[int, int]


class FailureCounter:
    """Counts the deaths over each record, and for each worker those in a row without any
    delivery."""

    def __init__(self) -> None:
        self._deaths: Counter[RecordKey] = Counter()
        self._fruitless: Counter[int] = Counter()

    def count_death(
        self, in_flight: Sequence[RecordKey], *, accidental: bool, beside: bool = False
    ) -> list[RecordKey]:
        """Count a death over the records in flight. Return the record that has killed too often.
        With several in flight, or others of another feed `beside` them, any could be the cause:
        only a record that was alone the last time is blamed."""
        self._deaths.update(in_flight)
        if (
            len(in_flight) != 1
            or beside
            or self._deaths[in_flight[0]] < (ACCIDENTS_TO_BLAME if accidental else DEATHS_TO_BLAME)
        ):
            return []
        ticket = in_flight[0][0]
        # the records behind it have other positions now
        for record in [r for r in self._deaths if r[0] == ticket]:
            del self._deaths[record]
        return [in_flight[0]]

    def is_hopeless(self, worker: int, *, fruitful: bool, accidental: bool) -> bool:
        """Count the death of a worker that had delivered something (`fruitful`) or not. Return True
        to give up."""
        self._fruitless[worker] = 0 if fruitful else self._fruitless[worker] + 1
        return self._fruitless[worker] >= (FRUITLESS_ACCIDENTS if accidental else FRUITLESS_DEATHS)


def describe(ticket: int, record: int, *, payload: Any, indexed: bool) -> str:
    """Describe a record for messages."""
    if record == NO_ITEM:
        return f"item {payload} (batch {ticket})" if indexed else f"batch {ticket}"
    index = f" (index {payload[record]})" if indexed else ""
    return f"record {record}{index} of batch {ticket}"


def without(payload: Any, records: Sequence[int]) -> Any:
    """Return the payload without these records, or None if nothing is left of it or it is one
    piece."""
    if not records:
        return payload
    if NO_ITEM in records:
        return None
    return [part for position, part in enumerate(payload) if position not in records] or None
