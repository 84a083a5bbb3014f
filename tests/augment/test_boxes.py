"""Boxes move with their image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cv2")
from fastfeed import augment as A
from fastfeed.augment.boxes import transform_boxes
from fastfeed.errors import SpecError
from tests.augment.dalis import by_opencv

SIDE = 80
CORNER = st.integers(0, SIDE - 12)
moves = st.lists(
    st.one_of(
        st.builds(A.Flip, st.sampled_from([0, 1]), st.sampled_from([0, 1])),
        st.builds(A.Resize, st.tuples(st.integers(60, 160), st.integers(60, 160))),
        st.builds(
            A.Crop,
            st.tuples(st.integers(30, 120), st.integers(30, 120)),
            y=st.floats(0, 1),
            x=st.floats(0, 1),
        ),
        st.builds(
            A.RandomResizedCrop,
            st.tuples(st.integers(60, 120), st.integers(60, 120)),
            scale=st.just((0.5, 1.0)),
        ),
        st.builds(A.Affine, st.sampled_from([90.0, 180.0, -90.0])),
        st.builds(A.Affine, shift=st.tuples(st.floats(-0.3, 0.3), st.floats(-0.3, 0.3))),
        st.just(A.GaussianBlur(0)),
        st.just(A.Brightness(1)),
    ),
    min_size=1,
    max_size=3,
)


def bright_box(image: Any) -> np.ndarray:
    """Return the box around the bright pixels: left, top, right, bottom."""
    rows, columns = np.nonzero(image[:, :, 0] > 127)
    if not rows.size:
        return np.zeros(4)
    return np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])


@settings(max_examples=80)
@given(CORNER, CORNER, st.integers(8, 12), st.integers(8, 12), moves, st.integers(0, 2**32))
def test_a_drawn_rectangle_is_followed(
    y: int, x: int, high: int, wide: int, chosen: list[Any], key: int
) -> None:
    image = np.zeros((SIDE, SIDE, 3), np.uint8)
    image[y : y + high, x : x + wide] = 255
    spec = A.Augment(chosen, images="image", masks="mask", boxes="boxes")
    record = {
        "image": image,
        "mask": image[:, :, 0] // 255,
        "boxes": np.float32([[x, y, x + wide, y + high]]),
    }
    result = by_opencv(spec, record, key)
    assert result["boxes"].dtype == np.float32 and result["boxes"].shape == (1, 4)
    (box,) = result["boxes"]
    # A pixel is bright or not where the box ends within it, and Affine may shift by a part of one.
    # Each operation rounds so, and the next one enlarges what it has rounded.
    most = 2 * len(chosen)
    for found in (bright_box(result["image"]), bright_box(255 * result["mask"])):
        assert np.abs(found - box).max() <= most or (box[2:] - box[:2]).min() <= 3
    assert set(np.unique(result["mask"])) <= {0, 1}, "a mask is never blended"


@settings(max_examples=60)
@given(st.lists(st.tuples(*[st.floats(-20, 100)] * 4), max_size=4), moves, st.integers(0, 2**32))
def test_boxes_stay_in_the_image_and_keep_their_rows(
    rows: list[Any], chosen: list[Any], key: int
) -> None:
    spec = A.Augment(chosen)
    (row,) = spec.plan(key, [(SIDE, SIDE)])
    result = transform_boxes(
        np.array(rows, np.float32).reshape(-1, 4), spec, row=row, size=(SIDE, SIDE)
    )
    assert result.shape == (len(rows), 4)
    high, wide = by_opencv(spec, np.zeros((SIDE, SIDE, 3), np.uint8), key).shape[:2]
    assert (result >= 0).all() and (result <= (wide, high, wide, high)).all()
    area = (result[:, 2:] - result[:, :2]).min(1, initial=np.inf)
    assert ((area > 0) | (result == 0).all(1)).all(), "a box has an area, or is all zeros"


def test_a_box_that_float32_leaves_no_area_is_zeros() -> None:
    spec = A.Augment([A.Flip(1.0)])
    (row,) = spec.plan(1, [(SIDE, SIDE)])
    box = np.array([[0, 0, 2**-23, 1], [0, 0, 1, 1]], np.float32)
    result = transform_boxes(box, spec, row=row, size=(SIDE, SIDE))
    np.testing.assert_array_equal(result, [[0, 0, 0, 0], [SIDE - 1, 0, SIDE, 1]])


def test_a_rotated_box_is_the_upright_one_around_it() -> None:
    spec = A.Augment([A.Affine(45.0)])
    (row,) = spec.plan(1, [(100, 100)])
    box = transform_boxes([[40, 40, 60, 60]], spec, row=row, size=(100, 100))
    half = 10 * np.sqrt(2)
    np.testing.assert_allclose(box, [[50 - half, 50 - half, 50 + half, 50 + half]], rtol=1e-5)


def test_a_box_that_is_lost_keeps_its_row() -> None:
    spec = A.Augment([A.Crop(10, y=0, x=0), A.Flip(1.0)])
    (row,) = spec.plan(1, [(50, 50)])
    boxes = transform_boxes(
        np.float32([[2, 3, 30, 8], [20, 20, 30, 30]]), spec, row=row, size=(50, 50)
    )
    np.testing.assert_array_equal(boxes, [[0, 3, 8, 8], [0, 0, 0, 0]])


@pytest.mark.parametrize(
    "boxes", [np.zeros((2, 5)), np.zeros(4), [[1, 2, "x", 4]], [[0, 0, np.nan, 1]], 3, None]
)
def test_what_is_no_box(boxes: Any) -> None:
    spec = A.Augment([A.Flip()])
    with pytest.raises(
        SpecError,
        match=r"must be finite numbers of shape \(n, 4\), each row left, top, right, bottom",
    ):
        transform_boxes(boxes, spec, row=[1, 0], size=(5, 5))


def test_no_boxes_are_boxes_too() -> None:
    for none in (np.zeros((0, 4), np.float32), []):
        assert transform_boxes(none, A.Augment([A.Flip()]), row=[1, 0], size=(5, 5)).shape == (0, 4)
