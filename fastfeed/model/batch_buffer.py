"""The simulated buffer between producers and training."""

from __future__ import annotations

from heapq import heappop, heappush

from fastfeed.model.workload import Workload


class BatchBuffer:
    """Batches between producers and training: their order, their room, and the epochs."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._given = 0  # items to producers
        self.taken = 0  # batches to the training
        self._ready = 0  # batches that may leave
        self._early: list[int] = []  # numbers of batches behind one that is not made yet
        self._blocked: list[tuple[int, int]] = []  # numbers without room, and their producers
        self.asked = False

    def give(self) -> tuple[int, int] | None:
        """Return the number of the next item and its epoch; None before its epoch begins."""
        number, epoch = self._given, 0
        if self._workload.epoch_batches:
            epoch = number // self._workload.epoch_batches
            asked = max(0, self.taken - (not self.asked))
            if epoch > asked // self._workload.epoch_batches:
                return None
        self._given += 1
        return number, epoch

    def put(self, number: int, producer: int) -> bool:
        """Take a batch, and return True; without room for it let its producer wait."""
        if not self._has_room(number):
            heappush(self._blocked, (number, producer))
            return False
        if not self._workload.ordered:
            self._ready += 1
            return True
        heappush(self._early, number)
        while self._early and self._early[0] == self.taken + self._ready:
            heappop(self._early)
            self._ready += 1
        return True

    def take(self) -> tuple[bool, list[int]]:
        """Return True if the training gets the batch that it asks for, and the producers that go
        on."""
        if not self.asked:
            return False, []
        free = [] if self._ready else self._retry()
        if not self._ready:
            return False, free
        self.asked = False
        self.taken += 1
        self._ready -= 1
        if self._ready <= self._workload.refill * self._workload.depth:
            free += self._retry()
        return True, free

    def _retry(self) -> list[int]:
        """Let producers that wait for room try again; return those that go on."""
        free = []
        while self._blocked and self._has_room(self._blocked[0][0]):
            number, producer = heappop(self._blocked)
            self.put(number, producer)
            free.append(producer)
        return free

    def _has_room(self, number: int) -> bool:
        workload, next_one = self._workload, self.taken + self._ready
        if self.asked and not self._ready and (not workload.ordered or number == next_one):
            return True
        if self._ready >= workload.depth:
            return False
        return not workload.ordered or number < self.taken + workload.depth + workload.early
