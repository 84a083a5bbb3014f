"""Batches of augmented records: values that are written into the memory of the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cv2")
from fastfeed import augment as A
from fastfeed.core.collate import aligned_arrays, collate
from fastfeed.core.stage_clock import StageClock
from fastfeed.core.stats import StageRow
from fastfeed.core.worker import Worker
from fastfeed.options import FeedOptions
from fastfeed.producers.builder import FETCH_GROUP, BatchBuilder
from fastfeed.source import source_from
from tests.augment.dalis import by_opencv, executed
from tests.augment.pictures import bomb, images, noise, png


@settings(max_examples=40)
@given(
    st.lists(images(channels=(3,)), min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from([None, "float16", "float32"]),
    st.sampled_from(["HWC", "CHW"]),
    st.sampled_from([True, 7, None]),
)
def test_a_batch_is_its_records(
    same: list[Any], normal: bool, dtype: Any, order: str, pad: Any
) -> None:
    """The values are computed in the batch or, if sizes vary, before it."""
    if pad is None:
        same = [np.roll(same[0], n) for n in range(len(same))]
    operations: list[Any] = [A.Flip(0.5), *([A.Normalize((1, 2, 3), 4.0)] if normal else [])]
    spec = A.Augment(
        [*operations, *([A.Cast(dtype)] if dtype else []), A.Layout(order)], images="image"
    )
    records = [{"id": n, "image": image} for n, image in enumerate(same)]
    made = [executed(spec, record, n) for n, record in enumerate(records)]
    asked: list[Any] = []

    def allocate(blanks: Any) -> Any:
        asked.extend(blanks)
        return aligned_arrays(blanks)

    batch, varied = collate(made, pad, place="", allocate=allocate)
    for n, record in enumerate(records):
        assert batch["id"][n] == n
        image = by_opencv(spec, record, n)["image"]
        part = batch["image"][(n, *map(slice, image.shape))]
        np.testing.assert_array_equal(part, image)
    assert varied[0] == () and len(varied[1]) == 3
    if len({image.shape for image in same}) == 1:
        assert [(batch[name].shape, batch[name].dtype) for name in ("id", "image")] == asked, (
            "all of it in one slot"
        )


class Outlet:
    """Records the calls of the builder."""

    ordered = True

    def __init__(self) -> None:
        self.marked: list[int] = []
        self.skipped: list[str] = []
        self.row = StageRow()
        self.clock = StageClock(self.row)
        self.allocate = aligned_arrays

    def mark(self, key: int, item: int, *, record: int) -> None:
        self.marked.append(record)

    def skip(self, error: BaseException, ticket: int | None) -> None:
        self.skipped.append(str(error).split(" of ")[0])


def test_what_is_being_made_is_known_while_it_is_fetched_and_while_it_is_decoded() -> None:
    """A few records are fetched before the first of them is decoded. The mark names the present
    record, in case the worker dies."""
    fetched: list[int] = []
    outlet: Any = Outlet()

    def fetch(number: int) -> Any:
        assert outlet.marked[-1] == number
        fetched.append(number)
        if number == 3:
            raise ValueError("gone")
        return (b"" if number == 5 else bomb(9, 9) if number == 6 else png(noise(9, 9))), number

    options = FeedOptions(
        augment=A.Augment([A.Decode(), A.Flip()]), transform=fetch, batch_size=12, on_error="skip"
    )
    numbers = range(FETCH_GROUP + 4)
    builder = BatchBuilder(source_from(numbers, options).reader, options)
    batch = builder.build(numbers, "batch 0", outlet=outlet, worker=Worker(0, 1, 1, 0), at=(0, 0))
    assert batch is not None
    assert batch.leaves[1].tolist() == [n for n in numbers if n not in (3, 5, 6)]
    assert fetched == list(numbers)
    sound = [n for n in range(FETCH_GROUP) if n not in (3, 5)]
    assert outlet.marked == [
        *range(FETCH_GROUP),
        *sound,
        *numbers[FETCH_GROUP:],
        *numbers[FETCH_GROUP:],
    ]
    assert outlet.skipped == ["record 3", "record 5", "record 6"], "the last when it is decoded"


def test_a_small_part_of_a_large_image_does_not_keep_the_rest() -> None:
    def kept(size: int) -> Any:
        return executed(A.Augment([A.Decode(), A.Crop(size)]), png(noise(40, 40)), 1).pixels.base

    assert kept(4) is None
    assert kept(39) is not None, "which would cost more than it saves"
