"""Record-level shuffle with the semantics of RandomShuffleQueue, in numpy: each draw is uniform
over a pool of records.

Records are copied once into numbered slots and once out of them; otherwise only slot numbers move.
In every epoch:

- A draw chooses from the oldest records that are not drawn yet: min_after_dequeue + batch_size of
  them for the first draw and one batch more for each further one, up to the capacity. The first
  batch therefore does not wait for the whole capacity. Until the capacity is reached, two batches
  come in for one that is drawn.

- Later records wait. The candidates of a draw depend only on the order of the records and the
  number of draws, and not on the size or time of the input batches.

- After the end of its input the pool drains to zero, and records of the next epoch fill the free
  places.

An exception of a signal handler in the middle of a change leaves the pool undefined.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fastfeed.core.batch import Batch, nbytes_of
from fastfeed.core.collate import Pad
from fastfeed.engine.shuffle.storage import Array, Slots, SlotStorage, pack_origins, unpack_origins
from fastfeed.errors import OptionError, StateError
from fastfeed.options import Shuffle

NO_RECORDS: Slots = np.empty(0, np.intp)


class Origin(NamedTuple):
    """The origin of records in a pool; `of_next`: they belong to the epoch after the present
    one."""

    stream: int
    item: int
    of_next: bool


class EpochInput:
    """The records of an epoch that cannot be drawn yet, by slot, in order of arrival. `begun` is
    True after the first record, `ended` after the last."""

    def __init__(self, *, begun: bool = False, ended: bool = False) -> None:
        self.begun, self.ended = begun, ended
        self.waiting: deque[Slots] = deque()

    def add(self, slots: Slots) -> None:
        """Add records that have arrived."""
        self.waiting.append(slots)
        self.begun = True

    def end(self) -> None:
        """Note that the epoch has no more records."""
        self.ended = True

    def oldest(self, count: int) -> list[Slots]:
        """Return at most `count` records, which wait no more."""
        found = []
        while count > 0 and self.waiting:
            slots = self.waiting.popleft()
            if len(slots) > count:
                self.waiting.appendleft(slots[count:])
            found.append(slots[:count])
            count -= len(slots)
        return found


class ShufflePool:
    """Batches of `batch_size` records in random order, out of batches of any size.

    The caller pushes while `wants()`, then draws, and calls `confirm()` when the batch was
    delivered, or `start_next_epoch()` if there was none. The draws depend only on the seed, the
    number of the epoch and the order of the pushed records.

    A caller without a state may `choose`, `copy` and `give_back` several batches together, which
    halves the work for each small batch. After `draw_together(at_once)` the room of at_once - 1
    batches is not drawn from, and holds records that came early: the draws do not depend on how
    many batches are drawn together, which may depend on timing. A second thread may `copy` while
    the first one goes on with everything else.
    """

    def __init__(
        self,
        shuffle: Shuffle,
        *,
        batch_size: int,
        last_batch: str = "keep",
        seed: int,
        epoch: int = 0,
        pad: Pad = None,
    ) -> None:
        self._size, self._last_batch, self._seed = batch_size, last_batch, seed
        self._capacity, self._first_draw = int(shuffle.capacity), first_draw(shuffle, batch_size)
        self._at_once, self._spare_rows = 1, 0
        self.epoch = epoch
        self.dropped = 0
        self.nbytes = 0  # capacity x record bytes, known after the first push
        self.held = 0  # records of both epochs: at most one pushed batch above the capacity
        self._rng = np.random.default_rng((seed, epoch))
        self._storage = SlotStorage(pad)
        self._storage_lock = threading.Lock()  # growth moves the records
        # the epoch that is drawn, and the epoch that is pushed if that is another
        self._epochs = deque([EpochInput()])
        self._input_ended = False
        self._open = True  # for more input
        # slots that a draw chooses from: [:_count], except the holes, which were drawn and are
        # filled before the next draw
        self._pool: Slots = np.empty(self._capacity, np.intp)
        self._count = 0
        self._holes = NO_RECORDS
        self._drawn: Slots | None = None  # not confirmed
        self._ready = self._goal = self._first_draw  # records for a draw, and to be held
        self._missing: dict[Origin, Slots] = {}

    def draw_together(self, at_once: int) -> None:
        """Allow `choose` to return up to `at_once` batches. Call it before the first push."""
        self._at_once, self._spare_rows = at_once, (at_once - 1) * self._size
        self._capacity -= self._spare_rows
        first_draw(Shuffle(self._capacity, self._first_draw - self._size), self._size)
        self._pool = self._pool[: self._capacity]

    @property
    def finished(self) -> bool:
        """True if end() was called and everything was drawn."""
        return not self._epochs

    def wants(self) -> bool:
        """Return True if another batch is to be pushed, or end_epoch() or end() called, before the
        next draw.

        It is also True while an epoch drains, so that the next one starts warm. A caller without
        the next epoch may still draw the rest of this one: the draws are the same.
        """
        return self.held < self._goal and self._open

    @property
    def has_room(self) -> bool:
        """True if another batch may be pushed before the next draw."""
        return self.held < self._goal + self._spare_rows and self._open

    def push(
        self, batch: Batch, *, stream: int = 0, item: int | None = None, first_row: int = 0
    ) -> None:
        """Copy the records in, which are rows `first_row`, ... of that item: a state needs it.
        Raise StateError unless has_room."""
        if not self.has_room:
            raise StateError("push() into a shuffle pool that does not want more: draw first")
        if not batch.rows:
            return
        self.nbytes = self.nbytes or self._capacity * batch.nbytes // batch.rows
        if batch.rows > self._storage.free:
            self._reserve(batch.rows)
        slots = self._storage.lend(batch.rows)
        if item is not None:
            rows = np.arange(first_row, first_row + batch.rows)
            self._storage.set_origins(slots, (stream, item, rows))
        self._storage.write(slots, batch.leaves)
        self._incoming_epoch().add(slots)
        self.held += batch.rows

    def end_epoch(self) -> None:
        """Note that the input of the epoch has ended; later records belong to the next one."""
        if not self._open:
            raise StateError(
                "end_epoch() of an epoch for which a shuffle pool has no place yet: draw first"
            )
        self._incoming_epoch().end()
        self._see_input()

    def end(self) -> None:
        """Note that there is no more input; an epoch without records does not count."""
        self._input_ended, self._open = True, False
        if self._epochs and self._epochs[-1].begun:
            self._epochs[-1].end()
        elif self._epochs and not self._epochs[-1].ended:
            self._epochs.pop()

    def draw(self) -> Batch | None:
        """Return a batch drawn uniformly without replacement, or None at the end of an epoch.

        It is the same until `confirm` or `start_next_epoch`.

        The last batch of an epoch may be smaller, or is dropped. Raise StateError if there is too
        little input.
        """
        if self._drawn is None:
            slots = self._choose_one()
            if not len(slots):
                return None
            self._drawn = slots
        return self._storage.take(self._drawn)

    def confirm(self) -> None:
        """Note that the batch was delivered, and free its slots."""
        if self._drawn is not None:
            self.give_back([self._drawn])
            self._drawn = None

    def choose(self) -> list[Slots]:
        """Return the slots of the next batches, for `copy`, until the pool wants() more; an empty
        list after the last of an epoch, and the next one is started.

        Raise StateError as `draw` does.
        """
        chosen: list[Slots] = []
        if self.finished:
            return chosen
        while len(chosen) < self._at_once and not (chosen and self.wants()):
            slots = self._choose_one()
            if not len(slots):
                break
            chosen.append(slots)
        if not chosen:
            self.start_next_epoch()
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
        """Free the slots, whose records were copied."""
        for slots in chosen:
            self._storage.forget(slots)
            self._storage.give_back(slots)

    def start_next_epoch(self) -> None:
        """Start the next epoch. The rest of this one is dropped."""
        left = self._pool[: self._count].copy()
        self.dropped, self.held = self.dropped + len(left), self.held - len(left)
        self.give_back([left])
        self._epochs.popleft()
        self.epoch += 1
        self._rng = np.random.default_rng((self._seed, self.epoch))
        self._count, self._ready, self._holes = 0, self._first_draw, NO_RECORDS
        if not self._epochs and not self._input_ended:
            self._epochs.append(EpochInput())
        self._see_input()

    def state(self, pack: Callable[[Array], Any] = pack_origins) -> dict[str, Any]:
        """Return the state without the records, for JSON. It includes a batch that was not
        confirmed.

        `pack` makes text of the origins of records, which takes most of the time.
        """
        drawable = [self._pool[: self._count][self._filled()], NO_RECORDS]
        slots = [
            np.concatenate([pool, *epoch.waiting])
            for pool, epoch in zip(drawable, self._epochs, strict=False)
        ]
        return {
            "options": self._options(),
            "epoch": self.epoch,
            "rng": self._rng.bit_generator.state,
            "numbers": [self._count, self._ready, self._goal, self.dropped, self.nbytes],
            "holes": self._holes.tolist(),
            "drawn": self._drawn is not None,
            "over": self._input_ended,
            "epochs": [[e.begun, e.ended] for e in self._epochs],
            "origins": [pack(self._storage.origins[:, s]) for s in slots],
            "dtypes": self._storage.bytes_dtypes(),
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
        """Return the pool of `state` without its records. It continues after all of missing() were
        placed.

        Raise OptionError if it was made with other options.
        """
        pool = cls(
            shuffle,
            batch_size=batch_size,
            last_batch=last_batch,
            seed=seed,
            epoch=state["epoch"],
            pad=pad,
        )
        if state["options"] != pool._options():
            raise OptionError(
                f"the state is of a shuffle with {state['options']}, got {pool._options()}"
            )
        pool._rng.bit_generator.state = state["rng"]
        pool._count, pool._ready, pool._goal, pool.dropped, pool.nbytes = state["numbers"]
        pool._input_ended = state["over"]
        pool._storage.restore_dtypes(state["dtypes"])
        pool._holes = np.array(state["holes"], np.intp)
        pool._drawn = NO_RECORDS if state["drawn"] else None
        pool._epochs.clear()
        for (begun, ended), origins in zip(
            state["epochs"], map(unpack_origins, state["origins"]), strict=True
        ):
            pool._expect(origins, EpochInput(begun=begun, ended=ended))
        pool._see_input()
        if state["drawn"]:
            pool._drawn = pool._pool[pool._holes]
            pool.held -= len(pool._holes)
        return pool

    def missing(self) -> dict[Origin, list[int]]:
        """Return the rows of each item that must be placed before the next draw."""
        return {
            key: sorted(set(self._storage.origins[2, slots].tolist()))
            for key, slots in self._missing.items()
        }

    def place(
        self, batch: Batch, *, stream: int, item: int, of_next: bool, first_row: int = 0
    ) -> None:
        """Copy in the missing records of an item that was produced again, and ignore the others."""
        key = Origin(stream, item, of_next)
        slots = self._missing.pop(key, np.empty(0, np.intp))
        rows = self._storage.origins[2, slots] - first_row
        here = (rows >= 0) & (rows < batch.rows)
        if here.any():
            self._storage.write(slots[here], [leaf[rows[here]] for leaf in batch.leaves])
        if not here.all():
            self._missing[key] = slots[~here]

    def _options(self) -> dict[str, Any]:
        room = {"capacity": self._capacity, "min_after_dequeue": self._first_draw - self._size}
        return {
            **room,
            "batch_size": self._size,
            "last_batch": self._last_batch,
            "seed": int(self._seed),
        }

    def _see_input(self) -> None:
        """Note whether the pool may take more: at most one epoch beside the one that is drawn."""
        ended = len(self._epochs) == 2 and self._epochs[1].ended
        self._open = not (self._input_ended or ended)

    def _incoming_epoch(self) -> EpochInput:
        if self._epochs[-1].ended:
            self._epochs.append(EpochInput())
        return self._epochs[-1]

    def _reserve(self, rows: int) -> None:
        """Add slots, so that `rows` records fit beside those that are lent."""
        least = self._capacity + self._spare_rows + self._at_once * self._size
        with self._storage_lock:
            self._storage.reserve(max(least, self._storage.lent) + rows)

    def _choose_one(self) -> Slots:
        """Return the slots of a batch, which are not drawn again; none at the end of an epoch."""
        if not self._epochs or self._missing:
            raise StateError(
                "draw() from a shuffle pool that "
                + ("misses records" if self._missing else "has ended")
            )
        epoch = self._epochs[0]
        self._fill(epoch)
        left = self._count - len(self._holes)
        if left < self._ready and not epoch.ended:
            raise StateError(
                f"draw() from {left} records where {self._ready} are needed: push while wants()"
            )
        rows = min(self._size, left)
        if not rows or (rows < self._size and self._last_batch == "drop"):
            return NO_RECORDS
        self._holes = self._rng.choice(left, rows, replace=False)
        self.held -= rows
        self._ready = min(self._capacity, self._ready + self._size)
        self._goal = min(self._capacity, self._goal + self._size)
        return self._pool[self._holes]

    def _fill(self, epoch: EpochInput) -> None:
        """Move the oldest records to the places of those that were drawn, and add more until there
        are enough."""
        holes, end, waiting = self._holes, self._count, epoch.waiting
        # the usual case: everything is full
        if end == self._ready and waiting and len(waiting[0]) == len(holes):
            self._pool[holes], self._holes = waiting.popleft(), NO_RECORDS
            return
        for slots in epoch.oldest(self._ready - end + len(holes)):
            here = len(holes[: len(slots)])
            self._pool[holes[:here]] = slots[:here]
            holes, more = holes[here:], slots[here:]
            self._pool[end : end + len(more)] = more
            end += len(more)
        self._holes, self._count = holes, end
        if len(holes) and epoch.ended:  # no records for them
            left = self._pool[:end][self._filled()]
            self._pool[: len(left)] = left
            self._holes, self._count = NO_RECORDS, len(left)

    def _filled(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return which places hold a record, also of a batch that was not confirmed."""
        filled = np.ones(self._count, bool)
        if self._drawn is None:
            filled[self._holes] = False
        return filled

    def _expect(self, origins: Array, epoch: EpochInput) -> None:
        """Add an epoch to a restored pool. All its records are missing."""
        rows, of_next = origins.shape[1], bool(self._epochs)
        self._reserve(rows)
        slots = self._storage.lend(rows)
        self._storage.set_origins(slots, origins)
        self.held += rows
        drawable = 0
        if not of_next:
            filled = self._filled()
            drawable = int(filled.sum())
            self._pool[: self._count][filled] = slots[:drawable]
        if rows > drawable:
            epoch.add(slots[drawable:])
        self._epochs.append(epoch)
        found: dict[Origin, list[int]] = {}
        for stream, item, slot in zip(*origins[:2].tolist(), slots.tolist(), strict=True):
            found.setdefault(Origin(stream, item, of_next), []).append(slot)
        self._missing |= {key: np.array(numbers, np.intp) for key, numbers in found.items()}


def first_draw(shuffle: Shuffle, batch_size: int) -> int:
    """Return the number of records for the first draw. Raise OptionError if the capacity is
    less."""
    first = int(shuffle.min_after_dequeue) + batch_size
    if shuffle.capacity < first:
        raise OptionError(
            f"a batch of {batch_size} records does not fit into the shuffle pool: capacity must "
            f"be >= min_after_dequeue + batch_size = {first}, got {shuffle}. For instance "
            f"shuffle=Shuffle(capacity={first + 2 * batch_size}, "
            f"min_after_dequeue={shuffle.min_after_dequeue})"
        )
    return first
