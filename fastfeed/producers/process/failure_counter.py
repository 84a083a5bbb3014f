"""What a worker had in hand when it died: the second time, it is to blame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fastfeed.ring.status_page import NOTHING

LIMIT = 2
# signals from outside hit the same sample now and then, the more so as a new worker begins with it
ACCIDENTS = 6
# So many workers in a row that die before they delivered anything: no other one will do better.
# Somebody who sends signals again and again proves less.
FRUITLESS, FRUITLESS_ACCIDENTS = 5, 20


# its item's ticket, and the record in the item's payload (-1: the item is one piece)
Sample = tuple[int, int]


class FailureCounter:
    """Counts the deaths over each sample, and those of each worker that led to nothing."""

    def __init__(self) -> None:
        self._samples: Counter[Sample] = Counter()
        self._fruitless: Counter[int] = Counter()

    def blame(
        self, hands: Sequence[Sample], *, accidental: bool, beside: bool = False
    ) -> list[Sample]:
        """Notes a death over `hands`; the one that has killed too often. Of several it may have
        been any, also of those that another feed had `beside` these: nobody is guilty but who was
        alone the last time."""
        self._samples.update(hands)
        if (
            len(hands) != 1
            or beside
            or self._samples[hands[0]] < (ACCIDENTS if accidental else LIMIT)
        ):
            return []
        ticket = hands[0][0]
        # the records behind it have other places now
        for sample in [s for s in self._samples if s[0] == ticket]:
            del self._samples[sample]
        return [hands[0]]

    def hopeless(self, worker: int, *, fruitful: bool, accidental: bool) -> bool:
        """Notes the death of a worker that had delivered something, or not; whether to give up."""
        self._fruitless[worker] = 0 if fruitful else self._fruitless[worker] + 1
        return self._fruitless[worker] >= (FRUITLESS_ACCIDENTS if accidental else FRUITLESS)


def describe(ticket: int, record: int, *, payload: Any, indexed: bool) -> str:
    """A sample in words."""
    if record == NOTHING:
        return f"item {payload} (batch {ticket})" if indexed else f"batch {ticket}"
    index = f" (index {payload[record]})" if indexed else ""
    return f"record {record}{index} of batch {ticket}"


def without(payload: Any, records: Sequence[int]) -> Any:
    """The payload without these records; None where nothing is left of it, or where it is one
    piece."""
    if not records:
        return payload
    if NOTHING in records:
        return None
    return [part for position, part in enumerate(payload) if position not in records] or None
