"""Shuffle pools that are fed to a plan, with records that tell which ones they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fastfeed.core.batch import Batch, nbytes_of
from fastfeed.engine.shuffle_pool import ShufflePool
from fastfeed.options import Shuffle

Action = Callable[[ShufflePool], None]
Leaves = Callable[[list[int]], tuple[np.ndarray, ...]]
sizes = st.lists(st.integers(1, 12), min_size=1, max_size=6)
lengths = st.lists(st.integers(0, 60), min_size=1, max_size=4)
lasts = st.sampled_from(["keep", "drop"])


@st.composite
def rooms(draw: Any) -> dict[str, Any]:
    """Options of a pool, from the narrowest to one that holds a whole epoch."""
    size, least = draw(st.integers(1, 8)), draw(st.integers(0, 20))
    capacity = least + size + draw(st.integers(0, 40))
    return {"shuffle": Shuffle(capacity, least), "batch_size": size, "last_batch": draw(lasts)}


def numbers(ids: list[int]) -> tuple[np.ndarray, ...]:
    """Two leaves that tell the record, and one of records without bytes."""
    array = np.array(ids, np.int64)
    return (
        array,
        np.repeat(array[:, None] % 251, 3, axis=1).astype(np.uint8),
        np.empty((len(ids), 0), np.float32),
    )


def words(ids: list[int]) -> tuple[np.ndarray, ...]:
    """Bytes of any length, of fixed length (as wide as the batch needs), and both forms in turn."""
    objects = np.empty(len(ids), object)
    objects[:] = [b"%d\0" % i for i in ids]
    fixed = np.array([b"x" * (i % 7 + 1) for i in ids])
    return np.array(ids), objects, fixed, fixed.astype(object) if ids[0] % 2 else fixed


def ragged(ids: list[int]) -> tuple[np.ndarray, ...]:
    """Record i has i % 5 + 1 values i, padded with -1 to the largest of its batch."""
    out = np.full((len(ids), max(i % 5 + 1 for i in ids)), -1, np.int32)
    for row, i in zip(out, ids, strict=True):
        row[: i % 5 + 1] = i
    return np.array(ids), out


def batch_of(leaves: tuple[np.ndarray, ...]) -> Batch:
    return Batch(leaves, len(leaves[0]), sum(map(nbytes_of, leaves)))


@dataclass(frozen=True)
class Push:
    """An item of stream 3 that has the number of its first record."""

    ids: list[int]
    leaves: Leaves

    @property
    def batch(self) -> Batch:
        return batch_of(self.leaves(self.ids))

    def __call__(self, pool: ShufflePool) -> None:
        pool.push(self.batch, stream=3, item=self.ids[0])


def plan(lengths: list[int], cuts: list[int], leaves: Leaves = numbers) -> Iterator[Action]:
    """Actions of a caller: epoch e has the records 1000 e, 1000 e + 1, ..., cut into batches of
    these sizes in turn."""
    for epoch, length in enumerate(lengths):
        ids, sizes = list(range(1000 * epoch, 1000 * epoch + length)), cycle(cuts)
        while ids:
            size = next(sizes)
            yield Push(ids[:size], leaves)
            ids = ids[size:]
        yield ShufflePool.end_epoch
    yield ShufflePool.end


def drawn(
    pool: ShufflePool, actions: Iterator[Action], *, lazy: bool = False, observe: Any = None
) -> list[Batch | None]:
    """All draws; who is lazy pushes nothing of an epoch before the one before is drained."""
    found, waits = [], False
    while True:
        while pool.wants() and not waits:
            action = next(actions)
            action(pool)
            waits = lazy and action is ShufflePool.end_epoch
        if pool.finished:
            return found
        found.append(pool.draw())
        waits = waits and found[-1] is not None
        if observe:
            observe(pool, found)


def ids_of(found: list[Batch | None]) -> list[list[int]]:
    """The ids of each epoch, in the order in which they were drawn."""
    epochs: list[list[int]] = [[]]
    for batch in found:
        if batch is None:
            epochs.append([])
        else:
            epochs[-1] += batch.leaves[0].tolist()
    assert not epochs.pop()
    return epochs


def same(one: list[Batch | None], other: list[Batch | None]) -> bool:
    pairs = list(zip(one, other, strict=True))
    if any((a is None) != (b is None) for a, b in pairs):
        return False
    leaves = [(x, y) for a, b in pairs if a and b for x, y in zip(a.leaves, b.leaves, strict=True)]
    return all(x.dtype == y.dtype and x.shape == y.shape and (x == y).all() for x, y in leaves)
