"""Ledger of a job: which batches of which epoch are claimed by a rank, and which are consumed.

A batch has a serial number: epoch * batches of an epoch + its number in the epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Any


class ClaimAnswer(Enum):
    """Answers to a claim other than a batch."""

    END = "the epoch has none left"
    WAIT = "other ranks hold the last ones, and may die"


class ClaimLedger:
    """Every batch of every epoch is held by one rank at most, and consumed once.

    A run has `run` epochs; 0: it has no end. At the end of an epoch a rank goes on to the next one,
    while others may still consume batches of it. At the end of a run it waits until they have, or
    gets the batches of those that leave. `state` is where an earlier job ended.
    """

    def __init__(self, batches: int, *, run: int, state: Mapping[str, Any] | None = None) -> None:
        self._batches = batches
        self._run = run
        self._first = 0 if state is None else int(state["epoch"])
        self._next: dict[int, int] = {}  # by epoch: the number that was not claimed yet
        self._held: dict[int, int] = {}  # by serial number: the rank that holds it
        self._returned: list[int] = []  # a heap of serial numbers whose ranks have left
        self.consumed: Counter[int] = Counter()  # batches by epoch
        self.given_again = 0
        for text, part in ({} if state is None else state["begun"]).items():
            epoch, unfinished = int(text), [int(number) for number in part["open"]]
            self._next[epoch] = int(part["next"])
            self._returned += [epoch * batches + number for number in unfinished]
            self.consumed[epoch] = int(part["next"]) - len(unfinished)
        heapify(self._returned)

    def claim(self, rank: int, epoch: int) -> int | ClaimAnswer:
        """Return the serial number of a batch for `rank`, which is in `epoch`. It is of an earlier
        epoch if a rank has left with it."""
        end = (epoch + 1) * self._batches
        if self._returned and self._returned[0] < end:
            serial = heappop(self._returned)
            self.given_again += 1
        elif (number := self._number(epoch)) < self._batches:
            self._next[epoch] = number + 1
            serial = epoch * self._batches + number
        elif self._run and (epoch + 1) % self._run == 0 and self._others_hold(rank, end=end):
            return ClaimAnswer.WAIT
        else:
            return ClaimAnswer.END
        self._held[serial] = rank
        return serial

    def consume(self, rank: int, serials: list[int]) -> int:
        """Note that a rank has consumed batches; return how many of them it held."""
        own = [serial for serial in serials if self._held.get(serial) == rank]
        for serial in own:
            del self._held[serial]
            self.consumed[serial // self._batches] += 1
        return len(own)

    def leave(self, rank: int) -> int:
        """Let others claim what a rank holds; return how many batches that are."""
        own = [serial for serial, holder in self._held.items() if holder == rank]
        for serial in own:
            del self._held[serial]
            heappush(self._returned, serial)
        return len(own)

    def ended(self) -> bool:
        """Return whether every batch of the first run is consumed."""
        end = (self._first // self._run + 1) * self._run if self._run else 0
        epochs = range(self._first, end)
        return bool(epochs) and all(self.consumed[e] == self._batches for e in epochs)

    def state(self) -> dict[str, Any]:
        """Return where the job is, as JSON: the first epoch that is not consumed and, for each
        epoch that was begun, the batches before `next` that are not consumed."""
        first = self._first
        while self.consumed[first] == self._batches:
            first += 1
        unfinished: dict[int, list[int]] = {e: [] for e in sorted(self._next) if e >= first}
        for serial in sorted((*self._held, *self._returned)):
            epoch, number = divmod(serial, self._batches)
            unfinished[epoch].append(number)
        begun = {str(e): {"next": self._next[e], "open": rest} for e, rest in unfinished.items()}
        return {"epoch": first, "begun": begun}

    def _number(self, epoch: int) -> int:
        return self._batches if epoch < self._first else self._next.get(epoch, 0)

    def _others_hold(self, rank: int, *, end: int) -> bool:
        return any(s < end and holder != rank for s, holder in self._held.items())
