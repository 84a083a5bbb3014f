"""A shuffle pool for a thread that no signal handler interrupts: it copies several batches at a
time."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np

from fastfeed.core.batch import Batch, nbytes_of
from fastfeed.core.collate import Pad
from fastfeed.errors import StateError
from fastfeed.options import Shuffle
from fastfeed.shuffle.shuffle_pool import first_draw
from fastfeed.shuffle.storage import RecordStorage, Slots


class BulkPool:
    """A ShufflePool for one epoch without a state, which halves the work for each small batch.

    Up to `at_once` batches are copied out at a time, for which the room of at_once - 1 batches is
    not drawn from: it holds records that came before they were needed. So what is drawn does not
    depend on how many batches are drawn at a time, and that number may depend on timing.

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
        self._slack = (at_once - 1) * batch_size
        self._capacity = shuffle.capacity - self._slack
        self._ready = self._goal = first_draw(
            Shuffle(self._capacity, shuffle.min_after_dequeue), batch_size
        )
        self._size, self._at_once, self._last = batch_size, at_once, last_batch
        self._rng = np.random.default_rng((seed, 0))
        self._store = RecordStorage(pad)
        self._moving = threading.Lock()  # a pool that grows moves its records
        self._free: Slots = np.empty(0, np.intp)  # a stack: [:_count]
        self._count = 0
        self._arrived: deque[Slots] = deque()  # in this order, and not drawn from yet
        # slots that a draw chooses from: [:_drawable] ...
        self._pool: Slots = np.empty(self._capacity, np.intp)
        self._drawable = 0
        # ... except these, which were drawn: the next records take their places
        self._holes: Slots = self._pool[:0]
        self._over = False
        self.dropped = 0
        self.held = 0  # records, less than one pushed batch above the capacity
        self.finished = False  # end() was called and everything was drawn

    def wants(self) -> bool:
        """Return True if another batch is to be pushed, or end() called, before the next draw."""
        return self.held < self._goal and not self._over

    @property
    def has_room(self) -> bool:
        """True if another batch may be pushed before the next draw."""
        return self.held < self._goal + self._slack and not self._over

    def push(self, batch: Batch) -> None:
        """Copy the records in. Raise StateError unless has_room."""
        if not self.has_room:
            raise StateError("push() into a shuffle pool that does not want more: draw first")
        if batch.rows > self._count:
            self._grow(batch.rows)
        self._count -= batch.rows
        slots = self._free[self._count : self._count + batch.rows].copy()
        self._store.write(slots, batch.leaves)
        self._arrived.append(slots)
        self.held += batch.rows

    def end(self) -> None:
        """Note that there is no more input."""
        self._over = True

    def choose(self) -> list[Slots]:
        """Return the slots of the next batches, for `copy`, until the pool wants() more; none after
        the last.

        The last batch may be smaller, or is dropped. Raise StateError if there is too little input.
        """
        chosen: list[Slots] = []
        while len(chosen) < self._at_once and not (chosen and self.wants()):
            slots = self._chosen()
            if not len(slots):
                break
            chosen.append(slots)
        return chosen

    def copy(self, chosen: list[Slots]) -> list[Batch]:
        """Return the batches. Padded records are padded to the largest of all of them."""
        if not chosen:
            return []
        with self._moving:
            leaves = self._store.take(np.concatenate(chosen)).leaves
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
            self._store.forget(slots)
            self._free[self._count : self._count + len(slots)] = slots
            self._count += len(slots)

    def _chosen(self) -> Slots:
        """Return the slots of a batch, which are not drawn again; none if there is no further
        batch."""
        self._fill()
        left = self._drawable
        if left < self._ready and not self._over:
            raise StateError(
                f"draw() from {left} records where {self._ready} are needed: push while wants()"
            )
        rows = min(self._size, left)
        if not rows or (rows < self._size and self._last == "drop"):
            self.dropped, self._drawable, self.held, self.finished = self.dropped + left, 0, 0, True
            return self._pool[:0]
        self._holes = self._rng.choice(left, rows, replace=False)
        self.held -= rows
        self._ready = min(self._capacity, self._ready + self._size)
        self._goal = min(self._capacity, self._goal + self._size)
        return self._pool[self._holes]

    def _fill(self) -> None:
        """Let the oldest records take the places of those that were drawn, and further ones until
        there are enough."""
        holes, end = self._holes, self._drawable
        # usually: everything is full
        if end == self._ready and self._arrived and len(self._arrived[0]) == len(holes):
            self._pool[holes], self._holes = self._arrived.popleft(), self._pool[:0]
            return
        for slots in self._oldest(self._ready - end + len(holes)):
            here = len(holes[: len(slots)])
            self._pool[holes[:here]] = slots[:here]
            holes, more = holes[here:], slots[here:]
            self._pool[end : end + len(more)] = more
            end += len(more)
        if len(holes):  # nothing came for them
            whole = np.ones(end, bool)
            whole[holes] = False
            left = self._pool[:end][whole]
            end = len(left)
            self._pool[:end] = left
        self._drawable, self._holes = end, self._pool[:0]

    def _oldest(self, count: int) -> list[Slots]:
        """Return at most `count` of the records that arrived, which are drawn from now on."""
        found = []
        while count > 0 and self._arrived:
            slots = self._arrived.popleft()
            if len(slots) > count:
                self._arrived.appendleft(slots[count:])
            found.append(slots[:count])
            count -= len(slots)
        return found

    def _grow(self, rows: int) -> None:
        """Add slots for a batch of `rows` records whenever there is room for one, beside those that
        are copied."""
        before = len(self._free)
        total = max(
            self._capacity + self._slack + self._at_once * self._size + rows,
            before + rows - self._count,
        )
        free = np.empty(total, np.intp)
        free[: self._count] = self._free[: self._count]
        free[self._count : self._count + total - before] = np.arange(before, total)
        self._free, self._count = free, self._count + total - before
        with self._moving:
            self._store.grow(total)
