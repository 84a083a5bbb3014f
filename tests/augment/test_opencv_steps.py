"""Every operation of OpenCV against slow numpy, on any image: 1 x 1, extreme aspect ratios,
grey."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cv2")
from fastfeed import augment as A
from fastfeed.augment import opencv
from fastfeed.augment.opencv import chain
from fastfeed.errors import SpecError
from tests.augment.dalis import by_opencv
from tests.augment.pictures import Image, images, noise
from tests.augment.reference import done

SHARES = st.floats(0, 1)
FILLS = st.integers(0, 255)
SIZES = st.tuples(st.integers(1, 30), st.integers(1, 30))
FACTORS = st.floats(0, 2)
KEYS = st.integers(0, 2**64 - 1)
operations = st.one_of(
    st.builds(A.Resize, SIZES, antialias=st.booleans()),
    st.builds(A.Resize, shorter=st.integers(1, 20)),
    st.builds(A.RandomResizedCrop, SIZES, antialias=st.booleans()),
    st.builds(A.Crop, SIZES, y=SHARES, x=SHARES, fill=FILLS),
    st.builds(A.Flip, SHARES, SHARES),
    st.builds(
        A.Affine,
        st.floats(-360, 360),
        st.tuples(SHARES, SHARES),
        st.floats(0.3, 3),
        st.floats(-40, 40),
        fill=FILLS,
    ),
    st.builds(A.Brightness, FACTORS),
    st.builds(A.Contrast, FACTORS),
    st.builds(A.Saturation, FACTORS),
    st.builds(A.Hue, st.floats(-180, 180)),
    st.builds(A.GaussianBlur, st.one_of(st.just(0), st.floats(0.1, 3))),
    st.builds(A.Erase, fill=FILLS),
)


# the allowed difference, because of rounding
LEVELS = {"Crop": 0, "Flip": 0, "Erase": 0, "GaussianBlur": 2, "Affine": 2}


@settings(max_examples=120)
@given(images(), st.lists(operations, min_size=1, max_size=3), KEYS)
def test_steps_do_what_they_say(image: Image, chosen: list[Any], key: int) -> None:
    spec = A.Augment(chosen)
    (row,) = spec.plan(key, [image.shape[:2]])
    for op, numbers in spec.program:
        before = image if image.ndim == 3 else image[:, :, None]
        plain = image[:, :, 0] if image.ndim == 3 and image.shape[2] == 1 else image
        image = chain(((op, numbers),))(plain, row)
        want = done(before, op, row[numbers])
        have = image.reshape(want.shape)
        far = np.abs(have.astype(float) - want.astype(float)).max()
        assert have.dtype == want.dtype
        assert far <= LEVELS.get(type(op).__name__, 1), (op, row[numbers])


@settings(max_examples=50)
@given(images(), st.lists(operations, min_size=1, max_size=4), KEYS)
def test_the_same_key_gives_the_same_image_and_the_user_s_own_stays(
    image: Image, chosen: list[Any], key: int
) -> None:
    kept, first = image.copy(), by_opencv(A.Augment(chosen), image, key)
    again = by_opencv(A.Augment(chosen), image, key)
    assert first.dtype == image.dtype and first.shape[2] == (
        1 if image.ndim == 2 else image.shape[2]
    )
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(image, kept)


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_affine_turns_counter_clockwise(turns: int) -> None:
    image, mask = noise(9, 9), noise(9, 9, 1, seed=1)
    spec = A.Augment([A.Affine(90.0 * turns)], masks=1)
    for before, after in zip((image, mask), by_opencv(spec, (image, mask), 1), strict=True):
        np.testing.assert_array_equal(after, np.rot90(before, turns))


def test_affine_shifts_down_and_right_and_scales_up() -> None:
    image = noise(8, 10)
    result = by_opencv(A.Augment([A.Affine(shift=(0.25, 0.5), fill=7)]), image, 1)
    np.testing.assert_array_equal(result[2:, 5:], image[:-2, :-5])
    assert (result[:2] == 7).all() and (result[:, :5] == 7).all()
    _, result = by_opencv(A.Augment([A.Affine(scale=2.0)], masks=1), (image, image), 1)
    np.testing.assert_array_equal(result, image[2:6].repeat(2, 0)[:, 2:8].repeat(2, 1)[:, 1:11])


@given(SIZES, SIZES)
def test_a_resized_mask_has_the_pixels_that_contain_the_new_centres(old: Any, new: Any) -> None:
    places = np.indices(old).astype(np.uint8)
    for axis in (0, 1):
        mask = by_opencv(A.Augment([A.Resize(new)], masks=1), (noise(*old), places[axis]), 1)[1]
        for at, picked in enumerate(np.moveaxis(mask[:, :, 0], axis, 0)):
            centre = Fraction(2 * at + 1, 2) * old[axis] / new[axis]
            assert (picked == math.floor(centre)).all()


@pytest.mark.parametrize(
    ("operation", "row"),
    [
        (A.Brightness(0.5), [50, 100, 25]),
        (A.Contrast(0.0), [128, 128, 128]),
        (A.Saturation(0.0), [152, 152, 152]),  # 0.299 * 100 + 0.587 * 200 + 0.114 * 50
        (A.Hue(360.0), [100, 200, 50]),
        (A.Hue(0.0), [100, 200, 50]),
    ],
    ids=repr,
)
def test_tones_have_the_field_s_meaning(operation: Any, row: list[int]) -> None:
    image = np.broadcast_to(np.array([100, 200, 50], np.uint8), (4, 5, 3))
    result = by_opencv(A.Augment([operation]), np.ascontiguousarray(image), 1)
    assert np.abs(result.astype(int) - row).max() <= 1


@pytest.mark.parametrize("kind", ["saturation", "hue"])
def test_grey_has_no_colours_to_change(kind: str) -> None:
    image = noise(6, 7, 1)
    operation = A.Saturation(1.7) if kind == "saturation" else A.Hue(80.0)
    result = by_opencv(A.Augment([operation]), image, 1)
    assert np.abs(result.astype(int) - image).max() <= 1


def test_a_crop_of_a_smaller_image_is_filled_up() -> None:
    image = noise(3, 4)
    result = by_opencv(A.Augment([A.Crop(8, y=0, x=1, fill=9)]), image, 1)
    np.testing.assert_array_equal(result[:3, 4:], image)
    assert (result[3:] == 9).all() and (result[:, :4] == 9).all()


def test_antialiasing_keeps_the_mean_and_plain_sampling_does_not() -> None:
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::4] = 252
    plain = by_opencv(A.Augment([A.Resize(16)]), stripes, 1)
    filtered = by_opencv(A.Augment([A.Resize(16, antialias=True)]), stripes, 1)
    assert np.abs(filtered[:, 1:-1].astype(float) - 63).max() <= 1
    assert np.abs(plain.astype(float).mean() - 63) > 20


@pytest.mark.parametrize("shape", [(1, 40_000), (40_000, 1)])
def test_what_opencv_refuses_names_the_operation(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some versions refuse sides that are too long."""

    def refuse(*given: Any, **named: Any) -> Image:
        raise opencv.cv2.error("src.cols < SHRT_MAX")

    monkeypatch.setattr(opencv.cv2, "warpAffine", refuse)
    with pytest.raises(
        SpecError,
        match="Affine: OpenCV cannot do this to an image of shape .*: src.cols < SHRT",
    ):
        by_opencv(A.Augment([A.Affine(180.0)]), np.zeros((*shape, 3), np.uint8), 1)
