"""DALI agrees with OpenCV: the same draws, and pixels within a table of differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cv2")
pytest.importorskip("nvidia.dali", reason="needs fastfeed[dali]")
from fastfeed import augment as A
from tests.augment.dalis import EACH, EXACT, ROUNDED, apart, by_dali, by_opencv
from tests.augment.pictures import Image, images, jpeg, noise, photographs, png, smooth, turned

KEYS = st.integers(0, 2**64 - 1)


def agree(ours: Image, theirs: Image, allowed: tuple[float, float]) -> None:
    most, mean = apart(ours, theirs)
    assert most <= allowed[0]
    assert mean <= allowed[1]


@pytest.mark.parametrize(("op", "allowed"), EACH, ids=lambda value: type(value).__name__)
def test_on_photographs(op: Any, allowed: tuple[float, float]) -> None:
    spec, files = A.Augment([A.Decode(), op]), photographs(4)
    for key, file in enumerate(files):
        agree(by_dali(spec, [file], [key])[0][0], by_opencv(spec, file, key), allowed)


@pytest.mark.parametrize("channels", ["rgb", "gray"])
def test_decoded_photographs(channels: str) -> None:
    spec, files = A.Augment([A.Decode(channels)]), photographs(4)
    for file in files:
        agree(by_dali(spec, [file], [0])[0][0], by_opencv(spec, file, 0), EXACT)


@settings(max_examples=40)
@given(images(), st.sampled_from(EACH), KEYS)
def test_on_any_image(image: Image, chosen: tuple[Any, tuple[float, float]], key: int) -> None:
    """Includes 1 x 1, extreme aspect ratios and grey."""
    spec = A.Augment([chosen[0]])
    agree(by_dali(spec, [image], [key])[0][0], by_opencv(spec, image, key), chosen[1])


@settings(max_examples=40)
@given(images(channels=(1,)), st.tuples(st.integers(1, 90), st.integers(1, 90)))
def test_masks_are_resized_alike(mask: Image, size: tuple[int, int]) -> None:
    """DALI computes in float32: where the centre of a new pixel lies on an edge, it may pick the
    other neighbour."""
    spec, record = A.Augment([A.Resize(size)], masks=1), (mask, mask)
    theirs, ours = by_dali(spec, [record], [0])[1][0], by_opencv(spec, record, 0)[1]
    clear = np.ones(size, bool)
    for axis, (old, new) in enumerate(zip(mask.shape[:2], size, strict=True)):
        on_edge = (2 * np.arange(new) + 1) * old % (2 * new) == 0
        clear &= ~on_edge.reshape((-1, 1) if axis == 0 else (1, -1))
    np.testing.assert_array_equal(theirs[clear], ours[clear])


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("window", [[], [A.RandomResizedCrop(20)]], ids=["whole", "window"])
@pytest.mark.parametrize("behind", [None, False, True], ids=["jpeg", "png", "png, behind"])
def test_exif_turns_first(orientation: int, window: list[Any], behind: bool | None) -> None:
    image = smooth(40, 30)
    file = (
        turned(jpeg(image), orientation)
        if behind is None
        else turned(png(image), orientation, behind=behind)
    )
    spec = A.Augment([A.Decode(), *window])
    allowed = ROUNDED if window else EXACT
    agree(by_dali(spec, [file], [5])[0][0], by_opencv(spec, file, 5), allowed)


@pytest.mark.parametrize(
    ("allowed", "file"),
    [
        (EXACT, png(smooth(20, 30))),
        (EXACT, png(smooth(20, 30, 1))),
        (EXACT, png(np.dstack([smooth(20, 30), noise(20, 30, 1)]))),
        (ROUNDED, png(noise(20, 30, 0, dtype="uint16"))),
        (EXACT, jpeg(smooth(1, 1))),
        (EXACT, jpeg(smooth(1, 300))),
    ],
    ids=["png", "grey png", "alpha", "16 bits", "1 x 1", "1 x 300"],
)
def test_decoded_files(allowed: tuple[float, float], file: bytes) -> None:
    spec = A.Augment([A.Decode()])
    agree(by_dali(spec, [file], [0])[0][0], by_opencv(spec, file, 0), allowed)


def test_a_whole_recipe_in_one_batch_of_all_sizes() -> None:
    spec = A.Augment(
        [
            *(
                A.Decode(),
                A.RandomResizedCrop(32),
                A.Flip(),
                A.Brightness(A.Uniform(0.8, 1.2)),
                A.Hue(A.Uniform(-9, 9)),
            ),
            *(A.Erase(), A.Normalize((120, 110, 100), (50, 60, 70)), A.Layout("CHW")),
        ]
    )
    files = [jpeg(smooth(30 + 9 * n, 80 - 7 * n, seed=n)) for n in range(8)]
    (result,) = by_dali(spec, files, range(8))
    assert result.shape == (8, 3, 32, 32)
    for key, (file, image) in enumerate(zip(files, result, strict=True)):
        most, mean = apart(image, by_opencv(spec, file, key))
        assert most * 50 <= 4
        assert mean * 50 <= 1


@pytest.mark.parametrize("draws", ["same", "own"])
def test_pairs_and_masks_in_step(draws: str) -> None:
    operations = [
        A.RandomResizedCrop(24),
        A.Flip(),
        A.Affine(A.Uniform(-30, 30)),
        A.Erase(),
    ]
    spec = A.Augment(operations, images=["left", "right"], masks=["mask"], draws=draws)
    record = {
        "left": smooth(40, 50),
        "right": smooth(40, 50, seed=1),
        "mask": noise(40, 50, 0) // 64,
    }
    left, right, mask = by_dali(spec, [record] * 3, [1, 2, 3])
    for n, key in enumerate((1, 2, 3)):
        theirs = by_opencv(spec, record, key)
        agree(left[n], theirs["left"], (4, 1))
        agree(right[n], theirs["right"], (4, 1))
        assert (mask[n] == theirs["mask"]).mean() > 0.95, "nearest: only ties may differ"
