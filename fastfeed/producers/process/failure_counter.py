"""Which sample to blame for dead workers: one that was in flight at a second death."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fastfeed.ring.status_page import NOTHING

LIMIT = 2
# signals from outside hit the same sample now and then, especially the first one of a new worker
ACCIDENTS = 6
# Workers in a row that die before they delivered anything: another one would do no better. Repeated
# signals from outside prove less.
FRUITLESS, FRUITLESS_ACCIDENTS = 5, 20


# ticket of its item, and the record in the item's payload (-1: the item is one piece)
Sample = tuple[int, int]


class FailureCounter:
    """Counts the deaths over each sample, and those of each worker that delivered nothing."""

    def __init__(self) -> None:
        self._samples: Counter[Sample] = Counter()
        self._fruitless: Counter[int] = Counter()

    def blame(
        self, hands: Sequence[Sample], *, accidental: bool, beside: bool = False
    ) -> list[Sample]:
        """Note a death over `hands`; return the samples that have killed too often. Of several
        samples any one may be the cause, also one that another feed had `beside` these: only a
        sample that was alone the last time is guilty."""
        self._samples.update(hands)
        if (
            len(hands) != 1
            or beside
            or self._samples[hands[0]] < (ACCIDENTS if accidental else LIMIT)
        ):
            return []
        ticket = hands[0][0]
        # records after it have other positions now
        for sample in [s for s in self._samples if s[0] == ticket]:
            del self._samples[sample]
        return [hands[0]]

    def hopeless(self, worker: int, *, fruitful: bool, accidental: bool) -> bool:
        """Note the death of a worker; return True if it is time to give up. `fruitful`: it had
        delivered something."""
        self._fruitless[worker] = 0 if fruitful else self._fruitless[worker] + 1
        return self._fruitless[worker] >= (FRUITLESS_ACCIDENTS if accidental else FRUITLESS)


def describe(ticket: int, record: int, *, payload: Any, indexed: bool) -> str:
    """Return a sample as text."""
    if record == NOTHING:
        return f"item {payload} (batch {ticket})" if indexed else f"batch {ticket}"
    index = f" (index {payload[record]})" if indexed else ""
    return f"record {record}{index} of batch {ticket}"


def without(payload: Any, records: Sequence[int]) -> Any:
    """Return the payload without these records; None if nothing is left, or if it is one piece."""
    if not records:
        return payload
    if NOTHING in records:
        return None
    return [part for position, part in enumerate(payload) if position not in records] or None
