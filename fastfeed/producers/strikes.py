"""What a worker had in hand when it died: the second time, it is to blame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from fastfeed.ring.board import NOTHING, Hand

LIMIT = 2
ACCIDENTS = 3  # a signal from outside may hit the same sample twice by chance
FRUITLESS = 5  # so many workers in a row that die before they delivered anything: no other one will do better


class Strikes:
    """Counts the deaths over each sample, and those of each worker that led to nothing."""

    def __init__(self) -> None:
        self._samples: Counter[Hand] = Counter()
        self._fruitless: Counter[int] = Counter()

    def blame(self, hands: Iterable[Hand], *, accidental: bool) -> list[Hand]:
        """Notes a death over `hands`; those that have killed too often."""
        guilty = []
        for hand in hands:
            self._samples[hand] += 1
            if self._samples[hand] >= (ACCIDENTS if accidental else LIMIT):
                del self._samples[hand]
                guilty.append(hand)
        return guilty

    def hopeless(self, worker: int, *, fruitful: bool) -> bool:
        """Notes the death of a worker that had delivered something, or not; whether to give up."""
        self._fruitless[worker] = 0 if fruitful else self._fruitless[worker] + 1
        return self._fruitless[worker] >= FRUITLESS


def describe(hand: Hand, payload: Any, *, indexed: bool) -> str:
    """What was in a hand, in words."""
    if payload is None:
        return f"batch {hand.key}"
    if hand.record == NOTHING:
        return f"item {payload} (batch {hand.key})" if indexed else f"batch {hand.key}"
    index = f" (index {payload[hand.record]})" if indexed else ""
    return f"record {hand.record}{index} of batch {hand.key}"


def without(payload: Any, records: Sequence[int]) -> Any:
    """The payload without these records; None where nothing is left of it, or where it is one piece."""
    if not records:
        return payload
    if NOTHING in records:
        return None
    return [part for position, part in enumerate(payload) if position not in records] or None
