"""Layout of a slot: leaves are aligned, do not overlap, and read back as they were written."""

from __future__ import annotations

from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fastfeed import OptionError
from fastfeed.ring.layout import (
    MAX_SMALL_SLOTS,
    SMALL_NBYTES,
    MemoryShare,
    decode,
    encode,
    offsets,
    slot_nbytes,
)
from fastfeed.ring.memory import PAGE, aligned

sizes = st.lists(st.integers(0, 1000), max_size=8)
shapes = hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)
NUMBERS = ["?", "i1", "u1", "i2", "u4", "i8", "f2", "f4", "f8", "c8", "c16", "S1", "S5"]
NUMBERS += [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]


@st.composite
def leaves(draw: st.DrawFn) -> np.ndarray:
    """Draw any leaf that passes a spec's check: numbers of every kind, bytes of fixed and of any
    length, also strided."""
    shape = draw(shapes)
    if draw(st.booleans()):
        out = np.empty(shape, object)
        for place in np.ndindex(shape):
            out[place] = draw(st.binary(max_size=5))
        return out
    dtype = np.dtype(draw(st.sampled_from(NUMBERS)))
    raw = draw(hnp.arrays(np.uint8, (*shape[:-1], shape[-1] * dtype.itemsize)))
    array = (raw % 2 if dtype.kind == "?" else raw).reshape(-1).view(dtype).reshape(shape)
    return array[::2] if draw(st.booleans()) else array


def same_bytes(have: np.ndarray, want: np.ndarray) -> bool:
    """Return True if both are equal bit by bit, also where a value is not equal to itself."""
    if want.dtype == object:
        return have.shape == want.shape and have.dtype == object and have.tolist() == want.tolist()
    return (
        have.shape == want.shape and have.dtype == want.dtype and have.tobytes() == want.tobytes()
    )


@given(sizes)
def test_parts_are_aligned_and_apart(parts: list[int]) -> None:
    places, end = offsets(parts)
    assert all(place % 64 == 0 for place in places)
    for (place, size), (after, _) in pairwise([*zip(places, parts, strict=True), (end, 0)]):
        assert place + size <= after < place + size + 64, (
            "one part runs into the next, or space is wasted"
        )
    assert places[:1] in ((0,), ())


@given(st.integers(0, 10**9))
def test_rounding_wastes_less_than_a_unit(nbytes: int) -> None:
    assert aligned(nbytes) % 64 == 0 <= aligned(nbytes) - nbytes < 64
    assert slot_nbytes(nbytes) % PAGE == 0
    assert slot_nbytes(nbytes) >= PAGE
    assert 0 <= slot_nbytes(nbytes) - nbytes < PAGE or nbytes == 0


@given(st.lists(leaves(), min_size=1, max_size=4), st.integers(0, 3))
@example([np.array([], object)], 0)
@example([np.array([b"a\0\0", b"", b"\0"], object)], 0)
@example([np.array([b"", b""], object), np.zeros((0, 3))], 0)
def test_what_was_described_is_read_back(batch: list[np.ndarray], rest: int) -> None:
    parts = encode(batch)
    places, end = offsets([p.nbytes for p in parts])
    # A slot is larger than its batch, and never clean.
    memory = np.full(end + rest * 64, 0xAB, np.uint8)
    for place, part in zip(places, parts, strict=True):
        np.ndarray(part.shape, part.dtype, memory, place)[...] = part
    for have, want in zip(decode(memory), batch, strict=True):
        assert same_bytes(have, want)
        assert have.dtype == object or not have.size or np.shares_memory(have, memory), (
            "numbers are views"
        )


budgets = st.integers(1, 2**30)
shares = st.builds(MemoryShare, budgets, st.integers(1, 600), st.integers(1, 64))


@given(shares, st.integers(1, 2**26), st.integers(0, 2**30))
def test_slots_fit_into_the_budget(share: MemoryShare, nbytes: int, taken: int) -> None:
    size = slot_nbytes(nbytes)
    assert share.min_slots == share.threads + 2, "one to fill for each, one ready and one lent"
    if size * share.min_slots > share.budget:
        with pytest.raises(OptionError, match="Raise memory=") as caught:
            share.slots(size, taken)
        assert f"{share.budget // size} slots of {size} bytes" in str(caught.value)
        assert f"at least {share.min_slots}," in str(caught.value)
        return
    count = share.slots(size, taken)
    assert count >= share.min_slots
    assert count <= max(share.min_slots, share.wanted, MAX_SMALL_SLOTS)
    assert count == share.min_slots or count * size + taken <= share.budget
    if share.slots(size) * size <= SMALL_NBYTES // 2 and share.budget >= 2 * SMALL_NBYTES:
        assert share.slots(size) == max(share.wanted, MAX_SMALL_SLOTS, share.min_slots), (
            "small batches get all they can use"
        )
