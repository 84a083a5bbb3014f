"""DALI agrees with OpenCV: the same draws, and pixels within the table of differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cv2")
pytest.importorskip("nvidia.dali", reason="needs fastfeed[dali]")
from fastfeed import augment as A
from fastfeed.augment.agreement import AGREEMENT, SIXTEEN_BIT_FACTOR
from tests.augment.dalis import apart, by_dali, by_opencv
from tests.augment.pictures import Image, images, jpeg, noise, photographs, png, smooth, turned

ANY = A.Uniform(0, 1)
OPERATIONS: dict[str, list[Any]] = {
    "Resize nearest": [
        A.Resize((50, 60), interpolation="nearest"),
        A.Resize(shorter=33, interpolation="nearest"),
    ],
    "Resize linear": [A.Resize((50, 9)), A.Resize((90, 9), antialias=True), A.Resize(shorter=40)],
    "Resize cubic": [
        A.Resize((50, 9), interpolation="cubic", antialias=smoothed) for smoothed in (False, True)
    ],
    "RandomResizedCrop": [A.RandomResizedCrop((40, 30)), A.RandomResizedCrop(24, antialias=True)],
    "Crop": [A.Crop(30, ANY, ANY, fill=7)],
    "Flip": [A.Flip(0.5, 0.5)],
    "Rotate": [A.Rotate(A.Uniform(-360, 360), fill=9)],
    "Affine": [
        A.Affine(A.Uniform(-90, 90), (ANY, ANY), A.LogUniform(0.3, 3), A.Uniform(-40, 40), p=0.8)
    ],
    "Brightness": [A.Brightness(A.Uniform(0, 2))],
    "Contrast": [A.Contrast(A.Uniform(0, 2))],
    "Saturation": [A.Saturation(A.Uniform(0, 2))],
    "Hue": [A.Hue(A.Uniform(-180, 180))],
    "GaussianBlur": [A.GaussianBlur(A.Uniform(0, 3), p=0.7)],
    "Erase": [A.Erase(p=0.9, count=3, fill=5)],
    "Normalize": [A.Normalize(120, 50.0)],
    "Cast": [A.Cast("float32"), A.Cast("uint8")],
    "Layout": [A.Layout("CHW")],
}
EACH = [(name, op) for name, ops in OPERATIONS.items() for op in ops]
KEYS = st.integers(0, 2**64 - 1)


def agree(name: str, ours: Image, theirs: Image, *, times: float = 1.0) -> None:
    most, mean = apart(ours, theirs)
    allowed = AGREEMENT[name]
    assert most <= allowed.maximum * times
    assert mean <= allowed.mean * times


@pytest.mark.parametrize(
    ("name", "op"), EACH, ids=lambda value: value if isinstance(value, str) else ""
)
def test_on_photographs(name: str, op: Any) -> None:
    spec, files = A.Augment([A.Decode(), op]), photographs(4)
    for key, file in enumerate(files):
        agree(name, by_dali(spec, [file], [key])[0][0], by_opencv(spec, file, key))


@pytest.mark.parametrize("channels", ["rgb", "gray"])
def test_decoded_photographs(channels: str) -> None:
    spec, files = A.Augment([A.Decode(channels)]), photographs(4)
    for file in files:
        agree("Decode", by_dali(spec, [file], [0])[0][0], by_opencv(spec, file, 0))


@settings(max_examples=40)
@given(images(), st.sampled_from(EACH), KEYS)
def test_on_any_image(image: Image, named: tuple[str, Any], key: int) -> None:
    """Includes 1 x 1, extreme aspect ratios, grey and 16 bits."""
    name, op = named
    spec, times = A.Augment([op]), SIXTEEN_BIT_FACTOR if image.dtype == np.uint16 else 1.0
    agree(name, by_dali(spec, [image], [key])[0][0], by_opencv(spec, image, key), times=times)


@settings(max_examples=40)
@given(images(), st.tuples(st.integers(1, 90), st.integers(1, 90)))
def test_nearest_neighbours_are_the_same_on_any_edge(image: Image, size: tuple[int, int]) -> None:
    spec = A.Augment([A.Resize(size, interpolation="nearest")])
    agree("Resize nearest", by_dali(spec, [image], [0])[0][0], by_opencv(spec, image, 0))


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
    agree(
        *(
            "RandomResizedCrop" if window else "Decode",
            by_dali(spec, [file], [5])[0][0],
            by_opencv(spec, file, 5),
        )
    )


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("Decode", png(smooth(20, 30))),
        ("Decode", png(smooth(20, 30, 1))),
        ("Decode", png(np.dstack([smooth(20, 30), noise(20, 30, 1)]))),
        ("Decode 16 bits", png(noise(20, 30, 0, dtype="uint16"))),
        ("Decode", jpeg(smooth(1, 1))),
        ("Decode", jpeg(smooth(1, 300))),
    ],
    ids=["png", "grey png", "alpha", "16 bits", "1 x 1", "1 x 300"],
)
def test_decoded_files(name: str, file: bytes) -> None:
    spec = A.Augment([A.Decode()])
    agree(name, by_dali(spec, [file], [0])[0][0], by_opencv(spec, file, 0))


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
        A.Rotate(A.Uniform(-30, 30), interpolation="nearest"),
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
        agree("RandomResizedCrop", left[n], theirs["left"])
        agree("RandomResizedCrop", right[n], theirs["right"])
        assert (mask[n] == theirs["mask"]).mean() > 0.95, "nearest: only ties may differ"


def test_what_stands_before_the_hand_over_is_done_by_opencv() -> None:
    parts = (
        [A.Decode(), A.RandomResizedCrop(24), A.Brightness(1.1)],
        [A.Flip(), A.Normalize(9.0, 2.0)],
    )
    whole, split = (
        A.Augment([*parts[0], *parts[1]]),
        A.Augment([*parts[0], A.HandOver(), *parts[1]]),
    )
    file = jpeg(smooth(40, 50))
    assert np.array_equal(by_dali(split, [file], [3])[0][0], by_opencv(whole, file, 3))
