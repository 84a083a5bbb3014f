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

import base64
import logging
import threading
import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fastfeed.core.batch import Batch, nbytes_of
from fastfeed.core.collate import Fill, aligned_empty, pad_value
from fastfeed.errors import OptionError, StateError
from fastfeed.options import FeedOptions, Shuffle

LOG = logging.getLogger("fastfeed")
Array = np.ndarray[Any, Any]
Slots = np.ndarray[Any, np.dtype[np.intp]]
NO_RECORDS: Slots = np.empty(0, np.intp)


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

    The caller pushes while `wants()`, then draws. The draws depend only on the seed, the number of
    the epoch and the order of the pushed records.

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
        pad: Fill = None,
    ) -> None:
        self._size, self._last_batch, self._seed = batch_size, last_batch, seed
        self._capacity, self._first_draw = int(shuffle.capacity), first_draw(shuffle, batch_size)
        self._at_once, self._spare_rows = 1, 0
        self.epoch = epoch
        self.dropped = 0
        self.held = 0  # records of both epochs: at most one pushed batch above the capacity
        self._rng = np.random.default_rng((seed, epoch))
        self._storage = RecordStorage(pad)
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
        self._ready = self._goal = self._first_draw  # records for a draw, and to be held
        # slots of records that must be placed before the next draw, by stream and item
        self.missing: dict[tuple[int, int], Slots] = {}

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

    def push(self, batch: Batch, *, stream: int = 0, item: int | None = None) -> None:
        """Copy the records of an item in, which a state names. Raise StateError unless has_room, or
        records are missing; SpecError if the batch has changed while it waited."""
        if not (self.has_room or self.missing):
            raise StateError("push() into a shuffle pool that does not want more: draw first")
        if not batch.rows:
            return
        if batch.rows > self._storage.free:
            self._reserve(batch.rows)
        slots = self._storage.lend(batch.rows)
        if item is not None:
            self._storage.set_origins(slots, (stream, item, np.arange(batch.rows)))
        self._storage.write(slots, batch.leaves)
        batch.refuse_changed()
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
        """Return a batch drawn uniformly without replacement; None at the end of an epoch, and the
        next one is started, and after the last one.

        The last batch of an epoch may be smaller, or is dropped. Raise StateError if there is too
        little input.
        """
        chosen = self.choose()
        batches = self.copy(chosen)
        self.give_back(chosen)
        return batches[0] if chosen else None

    def choose(self) -> list[Slots]:
        """Return the slots of the next batches, for `copy`, until the pool wants() more; an empty
        list after the last of an epoch, and the next one is started.

        Raise StateError as `draw` does.
        """
        chosen: list[Slots] = []
        while self._epochs and len(chosen) < self._at_once and not (chosen and self.wants()):
            slots = self._choose_one()
            if not len(slots):
                break
            chosen.append(slots)
        if self._epochs and not chosen:
            self._start_next_epoch()
        return chosen

    def copy(self, chosen: list[Slots]) -> list[Batch]:
        """Return the batches. Padded records are padded to the largest of all of them."""
        if not chosen:
            return []
        with self._storage_lock:
            if len(chosen) == 1:
                return [self._storage.take(chosen[0])]
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
            self._storage.give_back(slots)

    def state(self) -> dict[str, Any]:
        """Return the state of the epoch that is drawn, without the records: `origins` is an array
        of the stream, item and row of each. The records of the next epoch count as not pushed."""
        epoch = self._epochs[0]
        slots = np.concatenate([self._pool[: self._count][self._filled()], *epoch.waiting])
        return {
            "options": self._options(),
            "epoch": self.epoch,
            "rng": self._rng.bit_generator.state,
            "numbers": [self._count, self._ready, self._goal, self.dropped],
            "holes": self._holes.tolist(),
            "input": [epoch.begun, epoch.ended],
            "origins": self._storage.origins[:, slots],
            "dtypes": self._storage.bytes_dtypes(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on at a `state`, whose origins may be packed, after all that is `missing` was placed.
        Raise OptionError if the pool was made with other options."""
        if state["options"] != self._options():
            raise OptionError(
                f"the state is of a shuffle with {state['options']}, got {self._options()}"
            )
        self.epoch = state["epoch"]
        self._rng.bit_generator.state = state["rng"]
        self._count, self._ready, self._goal, self.dropped = state["numbers"]
        self._holes = np.array(state["holes"], np.intp)
        begun, ended = state["input"]
        self._epochs = deque([EpochInput(begun=begun, ended=ended)])
        origins = unpack_origins(state["origins"])
        self.held = origins.shape[1]
        self._reserve(self.held)
        self._storage.restore_dtypes(state["dtypes"])
        slots = self._storage.lend(self.held)
        self._storage.set_origins(slots, origins)
        filled = self._filled()
        drawable = int(filled.sum())
        self._pool[: self._count][filled] = slots[:drawable]
        if self.held > drawable:
            self._epochs[0].add(slots[drawable:])
        found: dict[tuple[int, int], list[int]] = {}
        for stream, item, slot in zip(*origins[:2].tolist(), slots.tolist(), strict=True):
            found.setdefault((stream, item), []).append(slot)
        self.missing = {key: np.array(numbers, np.intp) for key, numbers in found.items()}

    def place(self, batch: Batch, *, stream: int, item: int) -> bool:
        """Copy in the missing records of an item that was produced again, and ignore the others.
        Return False if it has fewer records than before."""
        slots = self.missing.get((stream, item), NO_RECORDS)
        rows = self._storage.origins[2, slots]
        if len(slots):
            if rows.max() >= batch.rows:
                return False
            self._storage.write(slots, [leaf[rows] for leaf in batch.leaves])
            batch.refuse_changed()
            del self.missing[stream, item]
        return True

    def _options(self) -> dict[str, Any]:
        return {
            "capacity": self._capacity,
            "min_after_dequeue": self._first_draw - self._size,
            "batch_size": self._size,
            "last_batch": self._last_batch,
            "seed": int(self._seed),
        }

    def _incoming_epoch(self) -> EpochInput:
        if self._epochs[-1].ended:
            self._epochs.append(EpochInput())
        return self._epochs[-1]

    def _start_next_epoch(self) -> None:
        """Start the next epoch. The rest of this one is dropped."""
        left = self._pool[: self._count].copy()
        self.dropped, self.held = self.dropped + len(left), self.held - len(left)
        self._storage.give_back(left)
        self._epochs.popleft()
        self.epoch += 1
        self._rng = np.random.default_rng((self._seed, self.epoch))
        self._count, self._ready, self._holes = 0, self._first_draw, NO_RECORDS
        if not self._epochs and not self._input_ended:
            self._epochs.append(EpochInput())
        self._see_input()

    def _see_input(self) -> None:
        """Note whether the pool may take more: at most one epoch beside the one that is drawn."""
        ended = len(self._epochs) == 2 and self._epochs[1].ended
        self._open = not (self._input_ended or ended)

    def _reserve(self, rows: int) -> None:
        """Add slots, so that `rows` records fit beside those that are lent."""
        least = self._capacity + self._spare_rows + self._at_once * self._size
        with self._storage_lock:
            self._storage.reserve(max(least, self._storage.lent) + rows)

    def _choose_one(self) -> Slots:
        """Return the slots of a batch, which are not drawn again; none at the end of an epoch."""
        if self.missing:
            raise StateError("draw() from a shuffle pool that misses records")
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
        """Return which places hold a record."""
        filled = np.ones(self._count, bool)
        filled[self._holes] = False
        return filled


class RecordStorage:
    """Records in numbered slots, which are lent, written, copied and given back. `origins` are the
    stream, item and row of each record."""

    def __init__(self, pad: Fill) -> None:
        self.origins = np.zeros((3, 0), np.int64)
        self._pad = pad
        self._columns: list[FixedColumn | VaryingColumn] = []
        self._dtypes: list[str] = []  # of leaves of bytes, before the pool was saved
        self._free_slots: Slots = np.zeros(0, np.intp)  # a stack: [:free]
        self.free = 0

    @property
    def lent(self) -> int:
        """Number of lent slots."""
        return len(self._free_slots) - self.free

    def reserve(self, rows: int) -> None:
        """Grow to `rows` slots in all, and keep their content."""
        had = len(self._free_slots)
        if rows <= had:
            return
        self._free_slots = np.concatenate(
            (
                self._free_slots[: self.free],
                np.arange(had, rows)[::-1],
                np.zeros(had - self.free, np.intp),
            )
        )
        self.free += rows - had
        self.origins = np.concatenate((self.origins, np.zeros((3, rows - had), np.int64)), axis=1)
        for column in self._columns:
            column.grow(rows)

    def lend(self, rows: int) -> Slots:
        """Return `rows` free slots. Call reserve() before."""
        self.free -= rows
        return self._free_slots[self.free : self.free + rows].copy()

    def set_origins(self, slots: Slots, origins: Iterable[Any]) -> None:
        """Note the origins of the records in these slots."""
        for column, values in zip(self.origins, origins, strict=True):
            column[slots] = values

    def write(self, slots: Slots, leaves: Sequence[Array]) -> None:
        """Copy records into slots."""
        if not self._columns:
            dtypes = self._dtypes or [""] * len(leaves)
            self._columns = [
                self._column(leaf, dtype) for leaf, dtype in zip(leaves, dtypes, strict=True)
            ]
        for column, leaf in zip(self._columns, leaves, strict=True):
            column.put(slots, leaf)

    def take(self, slots: Slots) -> Batch:
        """Return copies of the records of these slots, in this order."""
        leaves = tuple([column.take(slots) for column in self._columns])
        return Batch(leaves, len(slots), sum(map(nbytes_of, leaves)))

    def give_back(self, slots: Slots) -> None:
        """Free these slots, and release their records."""
        for column in self._columns:
            column.forget(slots)
        self._free_slots[self.free : self.free + len(slots)] = slots
        self.free += len(slots)

    def bytes_dtypes(self) -> list[str]:
        """Return the present dtype of each leaf of bytes, and "" for others."""
        return [column.bytes_dtype for column in self._columns] or self._dtypes

    def restore_dtypes(self, dtypes: list[str]) -> None:
        """Set the dtypes of leaves of bytes, which are as wide as the widest record before."""
        self._dtypes = dtypes

    def _column(self, leaf: Array, dtype: str) -> FixedColumn | VaryingColumn:
        rows = len(self._free_slots)
        if self._pad is not None and self._pad is not False and leaf.ndim > 1:
            return VaryingColumn(rows, self._pad)
        return FixedColumn((rows, *leaf.shape[1:]), np.dtype(dtype) if dtype else leaf.dtype)


class FixedColumn:
    """Records of one shape, side by side."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._records: Array = np.empty(shape, dtype)

    @property
    def bytes_dtype(self) -> str:
        return self._records.dtype.str if self._records.dtype.kind in "SO" else ""

    def grow(self, rows: int) -> None:
        # In place: the kernel moves the pages of a large array. There is no other view of it.
        self._records.resize((rows, *self._records.shape[1:]), refcheck=False)

    def put(self, slots: Slots, leaf: Array) -> None:
        # wider bytes, or bytes as objects
        if leaf.dtype != self._records.dtype and leaf.dtype.kind in "SO":
            self._records = self._records.astype(
                np.promote_types(self._records.dtype, leaf.dtype), copy=False
            )
        self._records[slots] = leaf

    def take(self, slots: Slots) -> Array:
        if self._records.dtype.kind == "O":
            return self._records[slots]
        out = aligned_empty((len(slots), *self._records.shape[1:]), self._records.dtype)
        # mode="raise" would copy into a buffer first
        self._records.take(slots, axis=0, out=out, mode="clip")
        return out

    def forget(self, slots: Slots) -> None:
        if self._records.dtype.kind == "O":
            self._records[slots] = None


class VaryingColumn:
    """Records that vary in shape, each in an array of its own."""

    bytes_dtype = ""

    def __init__(self, rows: int, pad: Fill) -> None:
        self._records: list[Array | None] = [None] * rows
        self._pad = pad

    def grow(self, rows: int) -> None:
        self._records.extend([None] * (rows - len(self._records)))

    def put(self, slots: Slots, leaf: Array) -> None:
        for slot, record in zip(slots.tolist(), leaf, strict=True):
            self._records[slot] = record.copy()

    def take(self, slots: Slots) -> Array:
        """Return these records, padded to the largest of them."""
        records = [record for slot in slots.tolist() if (record := self._records[slot]) is not None]
        dtype = np.result_type(*{record.dtype for record in records})
        out = aligned_empty(
            (len(records), *map(max, zip(*(r.shape for r in records), strict=True))), dtype
        )
        if any(record.shape != out.shape[1:] for record in records):
            out[...] = pad_value(self._pad, dtype)
        for place, record in zip(out, records, strict=True):
            place[tuple(map(slice, record.shape))] = record
        return out

    def forget(self, slots: Slots) -> None:
        for slot in slots.tolist():
            self._records[slot] = None


def pack_origins(origins: Array) -> str:
    """Return origins of records as text."""
    return base64.b64encode(zlib.compress(origins.astype("<i8").tobytes(), 1)).decode()


def unpack_origins(origins: Array | str) -> Array:
    """Return the origins, of shape (3, records), also from a text of pack_origins()."""
    if not isinstance(origins, str):
        return origins
    return np.frombuffer(zlib.decompress(base64.b64decode(origins)), "<i8").reshape(3, -1)


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


def check_room(shuffle: Shuffle, batch: Batch, *, options: FeedOptions) -> None:
    """Raise OptionError if a pool of such records does not fit into memory=."""
    record = max(1, batch.nbytes // batch.rows)
    nbytes = shuffle.capacity * record
    if nbytes > options.memory_nbytes:
        raise OptionError(
            f"a shuffle pool of {shuffle.capacity} records of {record} bytes does not fit into the "
            f"{options.memory_nbytes} bytes that batches in flight may take: choose a smaller "
            "shuffle=Shuffle(capacity=..., min_after_dequeue=...), or raise memory="
        )
    LOG.info("the shuffle pool takes %.1f MB: %d records", nbytes / 1e6, shuffle.capacity)
