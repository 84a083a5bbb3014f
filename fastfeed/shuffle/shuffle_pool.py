"""Record-level shuffle with the semantics of RandomShuffleQueue, in numpy: each draw is uniform
over a pool of records.

Records are copied once into numbered slots and once out of them; otherwise only slot numbers move.
In every epoch:

- A draw chooses from the `ready` oldest records that are not drawn yet: min_after_dequeue +
  batch_size for the first draw and one batch more for each further one, up to the capacity. So the
  first batch does not wait for the whole capacity; from then on two batches come in for one that
  goes out, and at the capacity one for one.

- Records that arrived beyond them wait. So what a draw chooses from follows from the order of the
  records and the number of draws, not from how the input was cut or when it came.

- When its input has ended the pool drains to zero, and the places that become free are filled from
  the next epoch.

An exception of a signal handler may come at any instruction of a draw, and the next draw returns
the same batch: the choice is recorded first, what follows from it may be done twice, and one
assignment completes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fastfeed.core.batch import Batch
from fastfeed.core.collate import Pad
from fastfeed.errors import OptionError, StateError
from fastfeed.options import Shuffle
from fastfeed.shuffle.ledger import Drawn, DrawState, EpochLedger
from fastfeed.shuffle.storage import (
    Array,
    Slots,
    Store,
    packed,
    unpacked,
)


def first_draw(shuffle: Shuffle, batch_size: int) -> int:
    """Return how many records the first batch needs. Raise OptionError if the pool has no room for
    them."""
    first = int(shuffle.min_after_dequeue) + batch_size
    if shuffle.capacity < first:
        raise OptionError(
            f"a batch of {batch_size} records does not fit into the shuffle pool: needed capacity "
            f">= min_after_dequeue + batch_size = {first}, there is {shuffle}. For instance "
            f"shuffle=Shuffle(capacity={first + 2 * batch_size}, "
            f"min_after_dequeue={shuffle.min_after_dequeue})"
        )
    return first


class Origin(NamedTuple):
    """The origin of a pool's records; `of_next`: they belong to the epoch after the one that is
    drawn."""

    stream: int
    item: int
    of_next: bool


class ShufflePool:
    """Batches of `batch_size` records in random order, out of batches of any size.

    The caller pushes while `wants()`, then draws, and calls `given()` when the batch was delivered,
    or `turn()` if there was none. What is drawn follows from the seed, the epoch's number and the
    order of the pushed records alone. Not for several threads at once.
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
        self._capacity, self._first = int(shuffle.capacity), first_draw(shuffle, batch_size)
        self.epoch = epoch
        self.dropped = 0
        self.nbytes = 0  # capacity x record bytes, known after the first push
        self._size, self._last, self._seed = batch_size, last_batch, seed
        self._seed_draws()
        self._store = Store(pad)
        # the one that is drawn, and then the one that is pushed if that is another
        self._epochs = deque([EpochLedger()])
        self._over = False
        self._all = np.ones(batch_size, bool)
        # slots that a draw chooses from: [:count]
        self._pool: Slots = np.empty(self._capacity, np.intp)
        self._now = DrawState(0, 0, self._first, self._first, [])
        self._missing: dict[Origin, Slots] = {}

    @property
    def held(self) -> int:
        """Records of both epochs: less than one pushed batch above the capacity."""
        return self._store.held

    @property
    def finished(self) -> bool:
        """True if end() was called and everything was drawn."""
        return not self._epochs

    def wants(self) -> bool:
        """Return True if another batch is to be pushed, or end_epoch() or end() called, before the
        next draw.

        Also while an epoch drains, so that the next one starts warm. A caller without the next
        epoch may draw the rest of this one all the same: that does not change what is drawn.
        """
        now = self._now
        return (
            not self._over and not now.drawn and self._store.held < now.goal and not self._ahead()
        )

    def push(self, batch: Batch, *, stream: int = 0, item: int = 0, first_row: int = 0) -> None:
        """Copy the records in, which are rows `first_row`, ... of that item. Raise StateError
        unless wants()."""
        if not self.wants():
            raise StateError("push() into a shuffle pool that does not want more: draw first")
        if not batch.rows:
            return
        self.nbytes = self.nbytes or self._capacity * batch.nbytes // batch.rows
        self._store.reserve(self._capacity + batch.rows)
        slots = self._store.lend(
            batch.rows, (stream, item, np.arange(first_row, first_row + batch.rows))
        )
        self._store.write(slots, batch.leaves)
        self._pushed().add(slots)

    def end_epoch(self) -> None:
        """Note that the input of the epoch has ended; later records belong to the next one."""
        if self._over or self._ahead():
            raise StateError(
                "end_epoch() of an epoch for which a shuffle pool has no place yet: draw first"
            )
        self._pushed().ended = True

    def end(self) -> None:
        """Note that there is no more input; an epoch without records does not count."""
        self._over = True
        if self._epochs and self._epochs[-1].begun:
            self._epochs[-1].ended = True
        elif self._epochs and not self._epochs[-1].ended:
            self._epochs.pop()

    def draw(self) -> Batch | None:
        """Return a batch drawn uniformly without replacement, or None at the end of an epoch: the
        same until `given` or `turn`.

        The last batch of an epoch may be smaller, or is dropped. Raise StateError if there is too
        little input.
        """
        return self._store.take(self._settled().slots) if self._chosen() else None

    def given(self) -> None:
        """Note that the batch was delivered: its slots are free."""
        self._store.forget(self._passed_on())

    def _chosen(self) -> bool:
        """Choose the next batch; return False if there is none."""
        if not self._epochs or self._missing:
            raise StateError(
                "draw() from a shuffle pool that "
                + ("misses records" if self._missing else "has ended")
            )
        if not self._now.drawn:
            self._fill(self._epochs[0])
            now = self._now
            if now.drawable < now.ready and not self._epochs[0].ended:
                raise StateError(
                    f"draw() from {now.drawable} records where {now.ready} are needed: push while "
                    "wants()"
                )
            rows = min(self._size, now.drawable)
            if not rows or (rows < self._size and self._last == "drop"):
                return False
            # In one call: an exception must not come between drawing the numbers and keeping them.
            now.drawn.extend(map(self._choose, (now.drawable,), (rows,)))
        return True

    def _passed_on(self) -> Slots:
        """Free the slots that were drawn; their records stay until the next push."""
        moved, count, ready, goal, drawn = self._now
        if len(drawn) < 2:  # the draw was interrupted: the batch was not delivered
            return self._pool[:0]
        batch: Drawn = drawn[1]
        self._store.give_back(batch.slots, batch.free)
        ready, goal = (
            min(self._capacity, ready + self._size),
            min(self._capacity, goal + self._size),
        )
        self._now = DrawState(moved, count - len(batch.slots), ready, goal, [])
        return batch.slots

    def turn(self) -> None:
        """Go on to the next epoch: the end of this one was reported, and its rest is dropped."""
        left = self._pool[: self._now.drawable]
        self.dropped += len(left)
        self._store.give_back(left, self._store.free)
        self._store.forget(left)
        self._epochs.popleft()
        self.epoch += 1
        self._seed_draws()
        self._now = DrawState(0, 0, self._first, self._now.goal, [])
        if not self._epochs and not self._over:
            self._epochs.append(EpochLedger())

    def state(self, pack: Callable[[Array], Any] = packed) -> dict[str, Any]:
        """Return everything but the records themselves, for JSON; restored() continues from there,
        also with what was not `given`. `pack` makes text of the origins of records, which takes the
        longest."""
        drawn = len(self._settled().slots) if self._now.drawn else 0
        moved, count, ready, goal, _ = self._now
        # the second epoch is not drawn yet
        drawable = ((self._pool[:count], moved), (self._pool[:0], 0))
        slots = [
            np.concatenate([pool, *epoch.oldest(behind, epoch.rows)])
            for (pool, behind), epoch in zip(drawable, self._epochs, strict=False)
        ]
        return {
            "options": self._options(),
            "epoch": self.epoch,
            "rng": self._rng.bit_generator.state,
            "numbers": [count, ready, goal, self.dropped, self.nbytes],
            "drawn": drawn,
            "over": self._over,
            "epochs": [[e.begun, e.ended] for e in self._epochs],
            "origins": [pack(self._store.origins[:, s]) for s in slots],
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
        """Return the pool of `state` without its records: when all of missing() are placed, it
        continues.

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
                f"the state is of a shuffle with {state['options']}, there is {pool._options()}"
            )
        pool._rng.bit_generator.state = state["rng"]
        count, ready, goal, pool.dropped, pool.nbytes = state["numbers"]
        pool._now = DrawState(0, count, ready, goal, [])
        pool._over = state["over"]
        pool._store.dtypes = state["dtypes"]
        pool._epochs.clear()
        for (begun, ended), origins in zip(
            state["epochs"], map(unpacked, state["origins"]), strict=True
        ):
            pool._expect(origins)
            pool._epochs[-1].begun, pool._epochs[-1].ended = begun, ended
        drawn = pool._pool[count - state.get("drawn", 0) : count].copy()
        if len(drawn):
            pool._now.drawn.extend((None, Drawn(drawn, drawn[:0], drawn[:0], pool._store.free)))
        return pool

    def missing(self) -> dict[Origin, list[int]]:
        """Return the rows of each item that are to be placed before the next draw."""
        return {
            key: sorted(set(self._store.origins[2, slots].tolist()))
            for key, slots in self._missing.items()
        }

    def place(
        self, batch: Batch, *, stream: int, item: int, of_next: bool, first_row: int = 0
    ) -> None:
        """Copy in what is missing of an item that was made again, and ignore its other records."""
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

    def _pushed(self) -> EpochLedger:
        if self._epochs[-1].ended:
            self._epochs.append(EpochLedger())
        return self._epochs[-1]

    def _seed_draws(self) -> None:
        self._rng = np.random.default_rng((self._seed, self.epoch))
        self._choose: Callable[[int, int], Slots] = partial(self._rng.choice, replace=False)  # type: ignore[assignment]

    def _fill(self, epoch: EpochLedger) -> None:
        """Let the oldest records become drawable, until there are enough."""
        moved, count, ready, goal, drawn = self._now
        for slots in epoch.oldest(moved, ready - count):
            self._pool[count : count + len(slots)] = slots
            moved, count = moved + len(slots), count + len(slots)
        self._now = DrawState(moved, count, ready, goal, drawn)

    def _settled(self) -> Drawn:
        """Return the batch that was chosen, with its slots moved to the end of the pool."""
        _, count, _, _, drawn = self._now
        pool = self._pool
        if len(drawn) == 1:
            at = drawn[0]
            left = count - len(at)
            inside = at < left
            stays = self._all[: len(at)].copy()
            stays[at[~inside] - left] = False
            drawn.append(Drawn(pool[at], at[inside], pool[left:count][stays], self._store.free))
        batch: Drawn = drawn[1]
        pool[batch.places] = batch.others
        pool[count - len(batch.slots) : count] = batch.slots
        return batch

    def _expect(self, origins: Array) -> None:
        """Add an epoch of a restored pool: all its records are missing."""
        rows, of_next = origins.shape[1], bool(self._epochs)
        self._store.reserve(max(self._capacity, self.held + rows))
        slots = self._store.lend(rows, origins)
        drawable = 0 if of_next else self._now.drawable
        self._pool[:drawable] = slots[:drawable]
        self._epochs.append(EpochLedger())
        self._epochs[-1].add(slots[drawable:])
        found: dict[Origin, list[int]] = {}
        for stream, item, slot in zip(*origins[:2].tolist(), slots.tolist(), strict=True):
            found.setdefault(Origin(stream, item, of_next), []).append(slot)
        self._missing |= {key: np.array(numbers, np.intp) for key, numbers in found.items()}
