"""Worker: a share, its own draws, and buffers in the requested structure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed import OptionError, Worker
from fastfeed.core.collate import Blank, aligned_arrays
from tests.helpers.batches import Pair, make, templates
from tests.helpers.batches import same as same_batch

small = st.integers(0, 50)


class Spec:
    """The required part of `like`: a shape and a dtype."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.shape = shape
        self.dtype = dtype


def no_objects(batch: Any) -> bool:
    if isinstance(batch, dict):
        return all(map(no_objects, batch.values()))
    if isinstance(batch, (tuple, list)):
        return all(map(no_objects, batch))
    return batch.dtype != object


@given(templates.map(lambda template: make(template, range(4))).filter(no_objects))
def test_a_buffer_has_the_structure_that_was_asked_for(like: Any) -> None:
    asked: list[Blank] = []

    def allocate(blanks: Sequence[Blank]) -> Any:
        asked.extend(blanks)
        return aligned_arrays(blanks)

    def filled(out: Any, values: Any) -> None:
        if isinstance(values, dict):
            for key in values:
                filled(out[key], values[key])
        elif isinstance(values, (tuple, list)):
            assert type(out) is type(values)
            for o, v in zip(out, values, strict=True):
                filled(o, v)
        else:
            assert out.ctypes.data % 64 == 0
            out[...] = values

    made = Worker(0, 1, 0, 0, allocate=allocate).empty(like)
    filled(made, like)
    assert same_batch(made, like)
    assert asked, "all of it comes from one call"


def test_a_buffer_needs_shapes_and_dtypes_only() -> None:
    made = Worker(0, 1, 0, 0).empty(Pair(Spec((2, 3), "float32"), [Spec((2,), ">i4")]))
    assert (made.image.shape, made.image.dtype) == ((2, 3), np.float32)
    assert (made.label[0].shape, made.label[0].dtype) == ((2,), np.dtype(">i4"))


@pytest.mark.parametrize("like", [(), {}, [], [[]], ((), {})])
def test_a_buffer_like_nothing(like: Any) -> None:
    with pytest.raises(
        OptionError, match=r"worker\.empty\(like\): .*must be (a batch of at least one|an) array"
    ):
        Worker(0, 1, 0, 0).empty(like)


@given(small, small, small, small)
def test_draws_are_those_of_seed_epoch_and_index(
    seed: int, epoch: int, index: int, other: int
) -> None:
    one = Worker(index, 60, seed, epoch)
    assert one.rng is one.rng
    drawn = one.rng.random(3).tolist()
    assert drawn == Worker(index, 99, seed, epoch).rng.random(3).tolist(), (
        "the number of producers changes nothing"
    )
    for name in ("seed", "epoch", "index"):
        changed = replace(one, **{name: other})
        assert (changed.rng.random(3).tolist() == drawn) is (getattr(one, name) == other)


def test_it_can_be_compared_and_shown() -> None:
    assert Worker(1, 2, 3, 4) == Worker(1, 2, 3, 4, allocate=lambda blanks: [])
    assert Worker(1, 2, 3, 4) != Worker(1, 2, 3, 5)
    assert repr(Worker(1, 2, 3, 4)) == "Worker(index=1, count=2, seed=3, epoch=4)"
