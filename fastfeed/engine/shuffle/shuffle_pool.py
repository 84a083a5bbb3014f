"""Record-level shuffle with the semantics of RandomShuffleQueue, in numpy: each draw is uniform
over a pool of records.

Records are copied once into numbered slots and once out of them; otherwise only slot numbers move.
In every epoch:

- A draw chooses from the `ready` oldest records that are not drawn yet: min_after_dequeue +
  batch_size for the first draw and one batch more for each further one, up to the capacity. The
  first batch therefore does not wait for the whole capacity. Until the capacity is reached, two
  batches come in for one that is drawn.

- Later records wait. The candidates of a draw depend only on the order of the records and the
  number of draws, and not on the size or time of the input batches.

- After the end of its input the pool drains to zero, and records of the next epoch fill the free
  places.

A signal handler may raise at any instruction of a draw. The next draw then returns the same batch:
the choice is recorded first, the steps after it may be repeated, and one assignment completes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fastfeed.core.batch import Batch
from fastfeed.core.collate import Pad
from fastfeed.engine.shuffle.ledger import DrawnBatch, DrawState, EpochLedger
from fastfeed.engine.shuffle.storage import Array, Slots, SlotStorage, pack_origins, unpack_origins
from fastfeed.errors import OptionError, StateError
from fastfeed.options import Shuffle


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


class Origin(NamedTuple):
    """The origin of records in a pool; `of_next`: they belong to the epoch after the present
    one."""

    stream: int
    item: int
    of_next: bool


class ShufflePool:
    """Batches of `batch_size` records in random order, out of batches of any size.

    The caller pushes while `wants()`, then draws, and calls `confirm()` when the batch was
    delivered, or `start_next_epoch()` if there was none. The draws depend only on the seed, the
    number of the epoch and the order of the pushed records. Not thread-safe.
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
        self._capacity, self._first_draw = int(shuffle.capacity), first_draw(shuffle, batch_size)
        self.epoch = epoch
        self.dropped = 0
        self.nbytes = 0  # capacity x record bytes, known after the first push
        self._size, self._last_batch, self._seed = batch_size, last_batch, seed
        self._seed_draws()
        self._storage = SlotStorage(pad)
        # the epoch that is drawn, and the epoch that is pushed if that is another
        self._epochs = deque([EpochLedger()])
        self._input_ended = False
        self._all_true = np.ones(batch_size, bool)
        # slots that a draw chooses from: [:count]
        self._pool: Slots = np.empty(self._capacity, np.intp)
        self._draw_state = DrawState(0, 0, self._first_draw, self._first_draw, [])
        self._missing: dict[Origin, Slots] = {}

    @property
    def held(self) -> int:
        """Records of both epochs: at most one pushed batch above the capacity."""
        return self._storage.held

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
        now = self._draw_state
        return (
            not self._input_ended
            and not now.drawn
            and self._storage.held < now.goal
            and not self._next_epoch_has_ended()
        )

    def push(self, batch: Batch, *, stream: int = 0, item: int = 0, first_row: int = 0) -> None:
        """Copy the records in, which are rows `first_row`, ... of that item. Raise StateError
        unless wants()."""
        if not self.wants():
            raise StateError("push() into a shuffle pool that does not want more: draw first")
        if not batch.rows:
            return
        self.nbytes = self.nbytes or self._capacity * batch.nbytes // batch.rows
        self._storage.reserve(self._capacity + batch.rows)
        slots = self._storage.lend(
            batch.rows, (stream, item, np.arange(first_row, first_row + batch.rows))
        )
        self._storage.write(slots, batch.leaves)
        self._incoming_epoch().add(slots)

    def end_epoch(self) -> None:
        """Note that the input of the epoch has ended; later records belong to the next one."""
        if self._input_ended or self._next_epoch_has_ended():
            raise StateError(
                "end_epoch() of an epoch for which a shuffle pool has no place yet: draw first"
            )
        self._incoming_epoch().end()

    def end(self) -> None:
        """Note that there is no more input; an epoch without records does not count."""
        self._input_ended = True
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
        return self._storage.take(self._settle_draw().slots) if self._choose_batch() else None

    def confirm(self) -> None:
        """Note that the batch was delivered, and free its slots."""
        self._storage.forget(self._free_drawn())

    def _choose_batch(self) -> bool:
        """Choose the next batch; return False if there is none."""
        if not self._epochs or self._missing:
            raise StateError(
                "draw() from a shuffle pool that "
                + ("misses records" if self._missing else "has ended")
            )
        if not self._draw_state.drawn:
            self._fill(self._epochs[0])
            now = self._draw_state
            if now.drawable < now.ready and not self._epochs[0].ended:
                raise StateError(
                    f"draw() from {now.drawable} records where {now.ready} are needed: push while "
                    "wants()"
                )
            rows = min(self._size, now.drawable)
            if not rows or (rows < self._size and self._last_batch == "drop"):
                return False
            # In one call: no exception may come between the draw and the record of it.
            now.drawn.extend(map(self._choose_slots, (now.drawable,), (rows,)))
        return True

    def _free_drawn(self) -> Slots:
        """Free the slots that were drawn; their records stay until the next push."""
        moved, count, ready, goal, drawn = self._draw_state
        if len(drawn) < 2:  # the draw was interrupted: the batch was not delivered
            return self._pool[:0]
        batch: DrawnBatch = drawn[1]
        self._storage.give_back(batch.slots, batch.free)
        ready = min(self._capacity, ready + self._size)
        goal = min(self._capacity, goal + self._size)
        self._draw_state = DrawState(moved, count - len(batch.slots), ready, goal, [])
        return batch.slots

    def start_next_epoch(self) -> None:
        """Start the next epoch. The rest of this one is dropped."""
        left = self._pool[: self._draw_state.drawable]
        self.dropped += len(left)
        self._storage.give_back(left, self._storage.free)
        self._storage.forget(left)
        self._epochs.popleft()
        self.epoch += 1
        self._seed_draws()
        self._draw_state = DrawState(0, 0, self._first_draw, self._draw_state.goal, [])
        if not self._epochs and not self._input_ended:
            self._epochs.append(EpochLedger())

    def state(self, pack: Callable[[Array], Any] = pack_origins) -> dict[str, Any]:
        """Return the state without the records, for JSON. It includes a batch that was not
        confirmed.

        `pack` makes text of the origins of records, which takes most of the time.
        """
        drawn = len(self._settle_draw().slots) if self._draw_state.drawn else 0
        moved, count, ready, goal, _ = self._draw_state
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
        count, ready, goal, pool.dropped, pool.nbytes = state["numbers"]
        pool._draw_state = DrawState(0, count, ready, goal, [])
        pool._input_ended = state["over"]
        pool._storage.restore_dtypes(state["dtypes"])
        pool._epochs.clear()
        for (begun, ended), origins in zip(
            state["epochs"], map(unpack_origins, state["origins"]), strict=True
        ):
            pool._expect(origins, EpochLedger(begun=begun, ended=ended))
        drawn = pool._pool[count - state.get("drawn", 0) : count].copy()
        if len(drawn):
            pool._draw_state.drawn.extend(
                (None, DrawnBatch(drawn, drawn[:0], drawn[:0], pool._storage.free))
            )
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

    def _next_epoch_has_ended(self) -> bool:
        return len(self._epochs) == 2 and self._epochs[1].ended

    def _incoming_epoch(self) -> EpochLedger:
        if self._epochs[-1].ended:
            self._epochs.append(EpochLedger())
        return self._epochs[-1]

    def _seed_draws(self) -> None:
        self._rng = np.random.default_rng((self._seed, self.epoch))
        self._choose_slots: Callable[[int, int], Slots] = partial(self._rng.choice, replace=False)  # type: ignore[assignment]

    def _fill(self, epoch: EpochLedger) -> None:
        """Make the oldest records drawable, until there are enough."""
        moved, count, ready, goal, drawn = self._draw_state
        for slots in epoch.oldest(moved, ready - count):
            self._pool[count : count + len(slots)] = slots
            moved, count = moved + len(slots), count + len(slots)
        self._draw_state = DrawState(moved, count, ready, goal, drawn)

    def _settle_draw(self) -> DrawnBatch:
        """Return the batch that was chosen, with its slots moved to the end of the pool."""
        _, count, _, _, drawn = self._draw_state
        pool = self._pool
        if len(drawn) == 1:
            at = drawn[0]
            left = count - len(at)
            inside = at < left
            stays = self._all_true[: len(at)].copy()
            stays[at[~inside] - left] = False
            drawn.append(
                DrawnBatch(pool[at], at[inside], pool[left:count][stays], self._storage.free)
            )
        batch: DrawnBatch = drawn[1]
        pool[batch.places] = batch.others
        pool[count - len(batch.slots) : count] = batch.slots
        return batch

    def _expect(self, origins: Array, epoch: EpochLedger) -> None:
        """Add an epoch to a restored pool. All its records are missing."""
        rows, of_next = origins.shape[1], bool(self._epochs)
        self._storage.reserve(max(self._capacity, self.held + rows))
        slots = self._storage.lend(rows, origins)
        drawable = 0 if of_next else self._draw_state.drawable
        self._pool[:drawable] = slots[:drawable]
        if rows > drawable:
            epoch.add(slots[drawable:])
        self._epochs.append(epoch)
        found: dict[Origin, list[int]] = {}
        for stream, item, slot in zip(*origins[:2].tolist(), slots.tolist(), strict=True):
            found.setdefault(Origin(stream, item, of_next), []).append(slot)
        self._missing |= {key: np.array(numbers, np.intp) for key, numbers in found.items()}
