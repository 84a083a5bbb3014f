"""Record-level shuffle with the semantics of RandomShuffleQueue, in numpy: each draw is uniform over a pool of records.

Records are copied once into numbered slots and once out of them; else only slot numbers move. In every epoch:

- A draw chooses from the `ready` oldest records that are not drawn yet: min_after_dequeue + batch_size for the first
  draw and one batch more for each further one, up to the capacity. So the first batch does not wait for the whole
  capacity; from then on two batches come in for one that goes out, and at the capacity one for one.
- What arrived beyond them waits its turn. So what a draw chooses from follows from the order of the records and the
  number of draws, not from how the input was cut or when it came.
- When its input has ended the pool drains to zero, and the places that become free are filled from the next epoch.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from fastfeed.batch import Batch
from fastfeed.collate import Pad
from fastfeed.errors import OptionError, StateError
from fastfeed.options import Shuffle
from fastfeed.shuffle.slots import Array, Slots, Store, packed, unpacked


class Origin(NamedTuple):
    """Where a pool's records came from, and whether they belong to the epoch after the one that is drawn."""

    stream: int
    item: int
    of_next: bool


class ShufflePool:
    """Batches of `batch_size` records in random order, out of batches of any size.

    The caller pushes while `wants()`, then draws. What is drawn follows from the seed, the epoch's number and the
    order of the pushed records alone. Not for several threads at once.
    """

    def __init__(
        self, shuffle: Shuffle, *, batch_size: int, last_batch: str = "keep", seed: int, epoch: int = 0, pad: Pad = None
    ) -> None:
        self._capacity, self._first = int(shuffle.capacity), int(shuffle.min_after_dequeue) + batch_size
        if self._capacity < self._first:
            raise OptionError(
                f"a batch of {batch_size} records does not fit into the shuffle pool: needed capacity >= "
                f"min_after_dequeue + batch_size = {self._first}, there is {shuffle}. For instance shuffle=Shuffle("
                f"capacity={self._first + 2 * batch_size}, min_after_dequeue={shuffle.min_after_dequeue})"
            )
        self.epoch = epoch
        self.dropped = 0
        self.nbytes = 0  # capacity x record bytes, known after the first push
        self.held = 0  # records of both epochs: less than one pushed batch above the capacity
        self._size, self._last, self._seed = batch_size, last_batch, seed
        self._rng = np.random.default_rng((seed, epoch))
        self._store = Store(pad)
        self._epochs = deque([_Epoch()])  # the one that is drawn, and then the one that is pushed if that is another
        self._over = False
        self._ready = self._first
        self._goal = self._first  # how many to hold, of both epochs; unlike _ready it does not start again
        self._pool: Slots = np.empty(self._capacity, np.intp)  # slots that a draw chooses from: [:_count]
        self._count = 0
        self._missing: dict[Origin, Slots] = {}

    @property
    def finished(self) -> bool:
        """Whether end() was said and everything was drawn."""
        return not self._epochs

    def wants(self) -> bool:
        """Whether another batch is to be pushed, or end_epoch() or end() said, before the next draw.

        Also while an epoch drains, so that the next one starts warm. A caller who waits with the next epoch may draw
        the rest of this one all the same: that changes nothing in what is drawn.
        """
        return not self._over and not self._ahead() and self.held < self._goal

    def push(self, batch: Batch, *, stream: int = 0, item: int = 0, first_row: int = 0) -> None:
        """Copies the records in, which are rows `first_row`, ... of that item; StateError unless wants()."""
        if not self.wants():
            raise StateError("push() into a shuffle pool that does not want more: draw first")
        if not batch.rows:
            return
        self.nbytes = self.nbytes or self._capacity * batch.nbytes // batch.rows
        self._store.reserve(self._capacity + batch.rows)
        slots = self._store.lend(batch.rows, (stream, item, np.arange(first_row, first_row + batch.rows)))
        self._store.write(slots, batch.leaves)
        self._pushed().add(slots)
        self.held += batch.rows

    def end_epoch(self) -> None:
        """The input of the epoch that is pushed has ended; what is pushed from now on belongs to the next one."""
        if self._over or self._ahead():
            raise StateError("end_epoch() of an epoch for which a shuffle pool has no place yet: draw first")
        self._pushed().ended = True

    def end(self) -> None:
        """There is no more input; an epoch of which nothing was pushed is none."""
        self._over = True
        if self._epochs and self._epochs[-1].begun:
            self._epochs[-1].ended = True
        elif self._epochs and not self._epochs[-1].ended:
            self._epochs.pop()

    def draw(self) -> Batch | None:
        """A batch drawn uniformly without replacement, or None once where an epoch ends.

        The last batch of an epoch may be smaller, or is dropped. StateError where there is too little input.
        """
        if not self._epochs or self._missing:
            raise StateError("draw() from a shuffle pool that " + ("misses records" if self._missing else "has ended"))
        current = self._epochs[0]
        for slots in current.oldest(min(self._ready - self._count, current.rows)):
            self._pool[self._count : self._count + len(slots)] = slots
            self._count += len(slots)
        if self._count < self._ready and not current.ended:
            raise StateError(f"draw() from {self._count} records where {self._ready} are needed: push while wants()")
        rows = min(self._size, self._count)
        if rows:
            batch = self._store.take(self._choose(rows))
            if rows == self._size or self._last == "keep":
                return batch
            self.dropped += rows
        self._turn()
        return None

    def state(self) -> dict[str, Any]:
        """All but the records themselves, for JSON; restored() goes on from there."""
        drawable = (self._pool[: self._count], self._pool[:0])  # the second epoch is not drawn yet
        slots = [np.concatenate([pool, *e.waiting]) for pool, e in zip(drawable, self._epochs, strict=False)]
        return {
            "options": self._options(),
            "epoch": self.epoch,
            "rng": self._rng.bit_generator.state,
            "numbers": [self._count, self._ready, self._goal, self.dropped, self.nbytes],
            "over": self._over,
            "epochs": [[e.begun, e.ended] for e in self._epochs],
            "origins": [packed(self._store.origins[:, s]) for s in slots],
            "dtypes": self._store.bytes_dtypes(),
        }

    @classmethod
    def restored(
        cls,
        state: dict[str, Any],
        shuffle: Shuffle,
        *,
        batch_size: int,
        last_batch: str = "keep",
        seed: int,
        pad: Pad = None,
    ) -> ShufflePool:
        """The pool that gave `state` without its records: when all of missing() are placed, it goes on as that one.

        OptionError where it was made with other options.
        """
        pool = cls(shuffle, batch_size=batch_size, last_batch=last_batch, seed=seed, epoch=state["epoch"], pad=pad)
        if state["options"] != pool._options():
            raise OptionError(f"the state is of a shuffle with {state['options']}, there is {pool._options()}")
        pool._rng.bit_generator.state = state["rng"]
        pool._count, pool._ready, pool._goal, pool.dropped, pool.nbytes = state["numbers"]
        pool._over = state["over"]
        pool._store.dtypes = state["dtypes"]
        pool._epochs.clear()
        for (begun, ended), origins in zip(state["epochs"], map(unpacked, state["origins"]), strict=True):
            pool._expect(origins)
            pool._epochs[-1].begun, pool._epochs[-1].ended = begun, ended
        return pool

    def missing(self) -> dict[Origin, list[int]]:
        """The rows of each item that are to be placed before the next draw."""
        return {key: sorted(set(self._store.origins[2, slots].tolist())) for key, slots in self._missing.items()}

    def place(self, batch: Batch, *, stream: int, item: int, of_next: bool, first_row: int = 0) -> None:
        """Copies in what is missing of an item that was made again, and ignores its other records."""
        key = Origin(stream, item, of_next)
        slots = self._missing.pop(key, np.empty(0, np.intp))
        rows = self._store.origins[2, slots] - first_row
        here = (rows >= 0) & (rows < batch.rows)
        if here.any():
            self._store.write(slots[here], [leaf[rows[here]] for leaf in batch.leaves])
        if not here.all():
            self._missing[key] = slots[~here]

    def _options(self) -> dict[str, Any]:
        room = {"capacity": self._capacity, "min_after_dequeue": self._first - self._size}
        return {**room, "batch_size": self._size, "last_batch": self._last, "seed": int(self._seed)}

    def _ahead(self) -> bool:
        return len(self._epochs) == 2 and self._epochs[1].ended

    def _pushed(self) -> _Epoch:
        if self._epochs[-1].ended:
            self._epochs.append(_Epoch())
        return self._epochs[-1]

    def _choose(self, rows: int) -> Slots:
        """Takes that many slots out of the pool."""
        at = self._rng.choice(self._count, rows, replace=False)
        slots = self._pool[at]
        self._pool[at] = -1
        self._count -= rows
        self.held -= rows
        tail = self._pool[self._count : self._count + rows]
        self._pool[at[at < self._count]] = tail[tail >= 0]  # what is left of the tail closes the holes before it
        self._ready = min(self._capacity, self._ready + self._size)
        self._goal = min(self._capacity, self._goal + self._size)
        return slots

    def _turn(self) -> None:
        self._epochs.popleft()
        self.epoch += 1
        self._rng = np.random.default_rng((self._seed, self.epoch))
        self._ready = self._first
        if not self._epochs and not self._over:
            self._epochs.append(_Epoch())

    def _expect(self, origins: Array) -> None:
        """One more epoch of a pool that is restored: all its records are missing."""
        rows, of_next = origins.shape[1], bool(self._epochs)
        self.held += rows
        self._store.reserve(max(self._capacity, self.held))
        slots = self._store.lend(rows, origins)
        drawable = 0 if of_next else self._count
        self._pool[:drawable] = slots[:drawable]
        self._epochs.append(_Epoch())
        self._epochs[-1].add(slots[drawable:])
        found: dict[Origin, list[int]] = {}
        for stream, item, slot in zip(*origins[:2].tolist(), slots.tolist(), strict=True):
            found.setdefault(Origin(stream, item, of_next), []).append(slot)
        self._missing |= {key: np.array(numbers, np.intp) for key, numbers in found.items()}


class _Epoch:
    """The records of an epoch that wait for their turn, by slot, in order of arrival; `begun`: it had one at all."""

    def __init__(self) -> None:
        self.waiting: deque[Slots] = deque()
        self.rows = 0
        self.begun = False
        self.ended = False

    def add(self, slots: Slots) -> None:
        self.waiting.append(slots)
        self.rows += len(slots)
        self.begun = True

    def oldest(self, count: int) -> list[Slots]:
        """Takes the first `count` out."""
        self.rows -= count
        parts = []
        while count:
            part = self.waiting.popleft()
            if len(part) > count:
                self.waiting.appendleft(part[count:])
                part = part[:count]
            parts.append(part)
            count -= len(part)
        return parts
