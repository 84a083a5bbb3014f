"""Batches outside the ring: counted in bytes until the last view of them is gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.core.collate import aligned_arrays
from fastfeed.producers.process.handle import FIRST_BORROWED, BorrowedBatches

SIZE = 1000


def added(batches: BorrowedBatches, value: int) -> int:
    leaves = aligned_arrays([((SIZE - 8,), np.dtype(np.uint8)), ((1,), np.dtype(np.int64))])
    for leaf in leaves:
        leaf[...] = value
        leaf.flags.writeable = False
    return batches.add(leaves, rows=1)


@given(st.lists(st.sampled_from(["add", "take", "drop"]), max_size=40))
def test_room_is_what_no_view_holds(steps: Sequence[str]) -> None:
    batches, ready, held, count = BorrowedBatches(), [], [], 0
    for step in steps:
        if step == "add":
            ready.append((added(batches, count % 100), count % 100))
            count += 1
        elif step == "take" and ready:
            number, value = ready.pop(0)
            assert number >= FIRST_BORROWED
            batch = batches.take(number)
            assert [int(leaf[0]) for leaf in batch.leaves] == [value, value]
            # a view of a leaf is enough to hold the batch
            held.append(batch.leaves[0][1:][::2])
            del batch
        elif step == "drop" and held:
            held.pop(0)
        alive = SIZE * (len(ready) + len(held))
        assert batches.has_room(SIZE, alive + SIZE)
        assert not batches.has_room(SIZE, alive + SIZE - 1)
        assert batches.depth == (len(ready), SIZE * len(ready))


def test_batches_may_be_written_to() -> None:
    batches = BorrowedBatches()
    batch: Any = batches.take(added(batches, 3))
    batch.leaves[1][0] += 1
    assert batch.leaves[1].tolist() == [4] and not batch.leaves[0].ctypes.data % 64


def test_what_nobody_took_is_dropped_at_the_end() -> None:
    batches = BorrowedBatches()
    added(batches, 1)
    batches.clear()
    assert batches.has_room(SIZE, SIZE)
