"""A shuffle pool that copies several batches at a time, for a thread without signal handlers."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np

from fastfeed.core.batch import Batch, nbytes_of
from fastfeed.core.collate import Pad
from fastfeed.engine.shuffle.shuffle_pool import first_draw
from fastfeed.engine.shuffle.storage import RecordStorage, Slots
from fastfeed.errors import StateError
from fastfeed.options import Shuffle


class BulkPool:
    """A ShufflePool for one epoch without a state, which halves the work for each small batch.

    Up to `at_once` batches are copied at a time. The room of at_once - 1 batches is not drawn from,
    and holds records that came early. The draws therefore do not depend on the number of batches
    that are drawn at a time, which may depend on timing.

    `choose`, `copy` and `give_back` of different batches may overlap: a second thread may copy
    while the first one goes on with everything else.
    """

    def __init__(
        self,
        shuffle: Shuffle,
        *,
        batch_size: int,
        at_once: int,
        last_batch: str,
        seed: int,
        pad: Pad = None,
    ) -> None:
        self._spare_rows = (at_once - 1) * batch_size
        self._capacity = shuffle.capacity - self._spare_rows
        self._draw_minimum = self._fill_goal = first_draw(
            Shuffle(self._capacity, shuffle.min_after_dequeue), batch_size
        )
        self._size = batch_size
        self._at_once = at_once
        self._last_batch = last_batch
        self._rng = np.random.default_rng((seed, 0))
        self._storage = RecordStorage(pad)
        self._storage_lock = threading.Lock()  # growth moves the records
        self._free_slots: Slots = np.empty(0, np.intp)  # a stack: [:_count]
        self._free_count = 0
        self._waiting: deque[Slots] = deque()  # records in order of arrival, not drawable yet
        # the first _drawable_count slots are drawable, except the holes
        self._pool: Slots = np.empty(self._capacity, np.intp)
        self._drawable_count = 0
        # places of drawn slots, which the next records fill
        self._holes: Slots = self._pool[:0]
        self._input_ended = False
        self.dropped = 0
        self.held = 0  # records: at most one pushed batch above the capacity
        self.finished = False  # end() was called and everything was drawn

    def wants(self) -> bool:
        """Return True if another batch is to be pushed, or end() called, before the next draw."""
        return self.held < self._fill_goal and not self._input_ended

    @property
    def has_room(self) -> bool:
        """True if another batch may be pushed before the next draw."""
        return self.held < self._fill_goal + self._spare_rows and not self._input_ended

    def push(self, batch: Batch) -> None:
        """Copy the records in. Raise StateError unless has_room."""
        if not self.has_room:
            raise StateError("push() into a shuffle pool that does not want more: draw first")
        if batch.rows > self._free_count:
            self._grow(batch.rows)
        self._free_count -= batch.rows
        slots = self._free_slots[self._free_count : self._free_count + batch.rows].copy()
        self._storage.write(slots, batch.leaves)
        self._waiting.append(slots)
        self.held += batch.rows

    def end(self) -> None:
        """Note that there is no more input."""
        self._input_ended = True

    def choose(self) -> list[Slots]:
        """Return the slots of the next batches, for `copy`, until the pool wants() more; an empty
        list after the last.

        The last batch may be smaller, or is dropped. Raise StateError if there is too little input.
        """
        chosen: list[Slots] = []
        while len(chosen) < self._at_once and not (chosen and self.wants()):
            slots = self._choose_one()
            if not len(slots):
                break
            chosen.append(slots)
        return chosen

    def copy(self, chosen: list[Slots]) -> list[Batch]:
        """Return the batches. Padded records are padded to the largest of all of them."""
        if not chosen:
            return []
        with self._storage_lock:
            leaves = self._storage.take(np.concatenate(chosen)).leaves
        found, start = [], 0
        for slots in chosen:
            end = start + len(slots)
            part = tuple([leaf[start:end] for leaf in leaves])
            found.append(Batch(part, len(slots), sum(map(nbytes_of, part))))
            start = end
        return found

    def give_back(self, chosen: list[Slots]) -> None:
        """Free the slots, which were copied."""
        for slots in chosen:
            self._storage.forget(slots)
            self._free_slots[self._free_count : self._free_count + len(slots)] = slots
            self._free_count += len(slots)

    def _choose_one(self) -> Slots:
        """Return the slots of a batch, which are not drawn again; an empty array after the last."""
        self._fill()
        left = self._drawable_count
        if left < self._draw_minimum and not self._input_ended:
            raise StateError(
                f"draw() from {left} records where {self._draw_minimum} are needed: push while "
                "wants()"
            )
        rows = min(self._size, left)
        if not rows or (rows < self._size and self._last_batch == "drop"):
            self.dropped += left
            self._drawable_count = self.held = 0
            self.finished = True
            return self._pool[:0]
        self._holes = self._rng.choice(left, rows, replace=False)
        self.held -= rows
        self._draw_minimum = min(self._capacity, self._draw_minimum + self._size)
        self._fill_goal = min(self._capacity, self._fill_goal + self._size)
        return self._pool[self._holes]

    def _fill(self) -> None:
        """Move the oldest records to the places of those that were drawn, and add more until there
        are enough."""
        holes, end = self._holes, self._drawable_count
        # the usual case: everything is full
        if end == self._draw_minimum and self._waiting and len(self._waiting[0]) == len(holes):
            self._pool[holes], self._holes = self._waiting.popleft(), self._pool[:0]
            return
        for slots in self._oldest(self._draw_minimum - end + len(holes)):
            here = len(holes[: len(slots)])
            self._pool[holes[:here]] = slots[:here]
            holes, more = holes[here:], slots[here:]
            self._pool[end : end + len(more)] = more
            end += len(more)
        if len(holes):  # no records for them
            whole = np.ones(end, bool)
            whole[holes] = False
            left = self._pool[:end][whole]
            end = len(left)
            self._pool[:end] = left
        self._drawable_count, self._holes = end, self._pool[:0]

    def _oldest(self, count: int) -> list[Slots]:
        """Return at most `count` of the records that arrived, which become drawable."""
        found = []
        while count > 0 and self._waiting:
            slots = self._waiting.popleft()
            if len(slots) > count:
                self._waiting.appendleft(slots[count:])
            found.append(slots[:count])
            count -= len(slots)
        return found

    def _grow(self, rows: int) -> None:
        """Add slots, so that a batch of `rows` records fits beside those that are being copied."""
        before = len(self._free_slots)
        total = max(
            self._capacity + self._spare_rows + self._at_once * self._size + rows,
            before + rows - self._free_count,
        )
        free = np.empty(total, np.intp)
        free[: self._free_count] = self._free_slots[: self._free_count]
        free[self._free_count : self._free_count + total - before] = np.arange(before, total)
        self._free_slots, self._free_count = free, self._free_count + total - before
        with self._storage_lock:
            self._storage.grow(total)
