"""Whole records, with masks and pairs, and a helpful error for every mistake."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cv2")
import cv2

from fastfeed import augment as A
from fastfeed.augment import image_records, opencv
from fastfeed.augment.executor import Executor
from fastfeed.augment.images import header_of
from fastfeed.errors import BadImage, SpecError
from tests.augment.dalis import by_opencv, executed
from tests.augment.pictures import (
    as_turned,
    bomb,
    images,
    jpeg,
    noise,
    photographs,
    png,
    smooth,
    turned,
)

DECODE = A.Augment([A.Decode()])


class Pair(NamedTuple):
    left: Any
    right: Any


def done(spec: A.Augment, record: Any, key: int = 1) -> Any:
    return by_opencv(spec, record, key)


def refused(spec: A.Augment, record: Any, error: type[Exception] = SpecError) -> str:
    with pytest.raises(error) as caught:
        done(spec, record)
    return str(caught.value)


@settings(max_examples=50)
@given(images())
def test_a_png_is_decoded_to_what_it_was(image: Any) -> None:
    colours = (
        image
        if image.ndim == 3 and image.shape[2] == 3
        else np.repeat(image.reshape(*image.shape[:2], 1), 3, 2)
    )
    np.testing.assert_array_equal(done(DECODE, png(image)), colours)


def test_a_jpeg_has_red_first_and_gray_one_channel() -> None:
    image = smooth(40, 60)
    assert np.abs(done(DECODE, jpeg(image)).astype(int) - image).max() < 12
    gray = done(A.Augment([A.Decode("gray")]), jpeg(image))
    assert gray.shape == (40, 60, 1)
    assert np.abs(gray[:, :, 0] - image @ [0.299, 0.587, 0.114]).max() < 6


def test_versions_of_opencv_without_red_first_give_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = jpeg(smooth(40, 60))
    first = done(DECODE, data)
    monkeypatch.setattr(opencv, "READ_RGB", None)
    np.testing.assert_array_equal(done(DECODE, data), first)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("encode", [jpeg, png])
def test_exif_is_applied(orientation: int, encode: Any) -> None:
    upright = done(DECODE, encode(smooth(30, 50)))
    found = done(DECODE, turned(encode(smooth(30, 50)), orientation))
    np.testing.assert_array_equal(found, as_turned(upright, orientation))


def test_exif_that_a_header_does_not_show_is_applied_before_anything_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sizes that OpenCV finds count, whatever a header says."""
    data = jpeg(smooth(30, 50))
    upright, operations = done(DECODE, data), [A.RandomResizedCrop(9), A.Flip()]
    monkeypatch.setattr(image_records, "size_of", lambda leaf, spec, name: (50, 30))
    spec = A.Augment([A.Decode(), *operations])
    found = [done(spec, data, key) for key in range(9)]
    monkeypatch.undo()
    for key, image in enumerate(found):
        np.testing.assert_array_equal(image, done(A.Augment(operations), upright, key))


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_every_png_becomes_three_channels_of_eight_bits(bits: int, channels: int) -> None:
    image = np.full((3, 4, channels), 200 << (bits - 8), f"uint{bits}")
    _, data = cv2.imencode(".png", image)
    assert np.abs(done(DECODE, data.tobytes()).astype(int) - 200).max() <= 1
    assert done(DECODE, data.tobytes()).dtype == np.uint8


def test_a_grey_png_of_sixteen_bits_would_lose_its_lower_ones() -> None:
    numbers = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64)
    spec = A.Augment([A.Decode("gray"), A.Flip()])
    text = refused(spec, png(numbers), BadImage)
    assert "it has 16 bits, of which Decode keeps the upper 8" in text


def test_the_first_leaf_of_a_dict_is_that_of_its_first_key() -> None:
    image, depth = np.indices((4, 4), np.uint8) * 40
    record = done(A.Augment([A.Flip(1.0)]), {"about": None, "image": image, "depth": depth})
    np.testing.assert_array_equal(record["image"][:, :, 0], image[:, ::-1])
    np.testing.assert_array_equal(record["depth"], depth)


def test_photographs_are_what_a_loop_by_hand_makes_of_them() -> None:
    spec = A.Augment([A.Decode(), A.RandomResizedCrop(64), A.Flip()])
    for key, data in enumerate(photographs()):
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        y, x, high, wide, *_, flipped, _ = spec.plan(key, [image.shape[:2]])[0]
        small = cv2.resize(image[y : y + high, x : x + wide], (64, 64))[:, :, ::-1]
        np.testing.assert_array_equal(done(spec, data, key), small[:, ::-1] if flipped else small)


def test_a_png_named_jpg_is_a_png() -> None:
    image = noise(3, 5)
    np.testing.assert_array_equal(
        done(A.Augment([A.Decode()], images="a.jpg"), {"a.jpg": png(image)})["a.jpg"], image
    )


def twelve_bits() -> bytes:
    """Return a file whose header states a depth that its pixels do not have."""
    whole = bytearray(jpeg(smooth(50, 50)))
    whole[whole.index(b"\xff\xc0") + 4] = 12
    return bytes(whole)


def cmyk() -> bytes:
    """Return a JPEG of four channels. OpenCV writes none, but the tables of a grey one fit four
    copies of its plane."""
    whole = jpeg(smooth(8, 8, 1))
    frame, scan = whole.index(b"\xff\xc0"), whole.index(b"\xff\xda")
    length = 8 + 3 * 4
    planes = b"".join(bytes([number, 0x11, 0]) for number in range(1, 5))
    header = whole[: frame + 2] + bytes([0, length]) + whole[frame + 4 : frame + 9] + b"\4" + planes
    between = whole[frame + 2 + int.from_bytes(whole[frame + 2 : frame + 4], "big") : scan]
    body = whole[scan + 2 + int.from_bytes(whole[scan + 2 : scan + 4], "big") :]
    start = (
        b"\xff\xda\0\x0e\4" + b"".join(bytes([number, 0]) for number in range(1, 5)) + b"\0\x3f\0"
    )
    return header + between + start + body


def test_cmyk_is_decoded_as_opencv_can() -> None:
    data = cmyk()
    assert header_of(data, A.Decode(), name="") == (8, 8, 4, 8, "JPEG")
    assert done(DECODE, data).shape == (8, 8, 3)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "the file is empty: 0 bytes"),
        (jpeg(smooth(50, 50))[:-30], "truncated JPEG: the end of the image is missing"),
        (png(smooth(50, 50))[:-30], "truncated: it ends after"),
        (b"GIF89a" + bytes(90), "neither JPEG nor PNG: it begins with b'GIF89a"),
        (bomb(60_000, 60_000), "its header says 60000 x 60000 pixels"),
        (bomb(50, 60), "damaged PNG: OpenCV finds no 50 x 60 x 3 pixels of 8 bits in it"),
        (twelve_bits(), "damaged JPEG: OpenCV finds no 50 x 50 x 3 pixels of 12 bits in it"),
    ],
    ids=["empty", "jpeg", "png", "gif", "bomb", "damaged png", "12 bits"],
)
def test_bad_images_say_why(data: bytes, text: str) -> None:
    assert refused(DECODE, data, BadImage).startswith(f"record: {text}")
    both = A.Augment([A.Decode()], images=["a", "b"])
    assert refused(both, {"a": png(noise(2, 2)), "b": data}, BadImage).startswith("record['b']: ")


@settings(max_examples=40)
@given(st.integers(0, 2**64 - 1), st.booleans())
def test_pairs_are_drawn_alike_or_each_by_itself(key: int, own: bool) -> None:
    operations = [A.RandomResizedCrop(5), A.Hue(A.Uniform(-90, 90))]
    spec = A.Augment(operations, images=["left", "right"], draws="own" if own else "same")
    image = noise(40, 40)
    left, right = done(spec, Pair(image, image.copy()), key)
    assert (left == right).all() == (not own)
    one, two = spec.plan(key, [(40, 40), (40, 40)])
    assert (one == two) == (not own)
    assert one == A.Augment(operations).plan(key, [(40, 40)])[0]


def test_a_record_keeps_its_structure_and_its_other_leaves() -> None:
    spec = A.Augment([A.Resize(2)], images=("pair", 1))
    result = executed(spec, {"id": 7, "pair": (b"name", noise(4, 4)), "class": [1.5, 2.5]}, 1)
    assert result["id"] == 7 and result["pair"][0] == b"name" and result["class"] == [1.5, 2.5]
    assert result["pair"][1].shape == (2, 2, 3)
    assert isinstance(done(A.Augment([A.Flip()], images=["left"]), Pair(noise(2, 2), 3)), Pair)


def test_records_of_another_structure_are_looked_at_again() -> None:
    executor = Executor(A.Augment([A.Resize(2)], images="image"))
    for record in (
        {"image": noise(4, 4)},
        {"id": 1, "image": noise(4, 4)},
        {"image": noise(4, 4), "id": 1},
    ):
        result = executor.execute(executor.prepare(record, 1))
        assert result["image"].shape == (2, 2, 3) and set(result) == set(record)


def test_masks_from_files_keep_their_numbers() -> None:
    spec = A.Augment([A.Decode(), A.Resize(6)], masks=1)
    labels = (np.indices((12, 12)).sum(0) // 4 * 7).astype(np.uint8)
    for mask in (png(labels), labels, labels[:, :, None]):
        _, result = done(spec, (jpeg(smooth(12, 12)), mask))
        np.testing.assert_array_equal(result, labels[1::2, 1::2, None])


@pytest.mark.parametrize(
    ("mask", "error", "text"),
    [
        (png(noise(12, 12)), BadImage, "record[1]: a mask must be a grey PNG of 8 bits"),
        (jpeg(noise(12, 12, 1)), BadImage, "which keeps its numbers: this is a JPEG of 1 channels"),
        (
            png(noise(12, 12, 1, dtype="uint16")),
            BadImage,
            "this is a PNG of 1 channels (or a palette) and 16 bits",
        ),
        (
            png(noise(12, 11, 1)),
            SpecError,
            "record[1] is (12, 11) and its image (12, 12): must have the same size",
        ),
        (b"", BadImage, "record[1]: the file is empty"),
    ],
    ids=["colours", "jpeg", "16 bits", "size", "empty"],
)
def test_masks_that_cannot_be(mask: Any, error: type[Exception], text: str) -> None:
    spec = A.Augment([A.Decode(), A.Flip()], masks=1)
    assert text in refused(spec, (jpeg(smooth(12, 12)), mask), error)


@settings(max_examples=60)
@given(
    images(channels=(3,)),
    st.sampled_from([None, "float16", "float32"]),
    st.sampled_from(["HWC", "CHW"]),
    st.sampled_from([None, (3.5, 2.0), ((1, 2, 3), 4.0), (9.0, (4, 5, 6))]),
)
def test_values_are_normalized_cast_and_laid_out(
    image: Any, dtype: Any, order: str, scale: Any
) -> None:
    operations: list[Any] = [] if scale is None else [A.Normalize(*scale)]
    operations += [] if dtype is None else [A.Cast(dtype)]
    result = done(A.Augment([*operations, A.Layout(order)]), image)
    want = (
        image.astype(np.float64)
        if scale is None
        else (image.astype(np.float64) - scale[0]) / scale[1]
    )
    name = dtype or ("uint8" if scale is None else "float32")
    assert result.dtype == name
    want = want.astype(name).transpose((2, 0, 1) if order == "CHW" else (0, 1, 2))
    exact = {"rtol": 2e-3 if name == "float16" else 1e-5, "atol": 1e-3}
    np.testing.assert_allclose(result.astype(float), want.astype(float), **exact)


def test_normalize_is_exact_where_the_numbers_are() -> None:
    image = noise(5, 6)
    result = done(A.Augment([A.Normalize(128, 64)]), image)
    np.testing.assert_array_equal(result, (image.astype(np.float32) - 128) / 64)
    np.testing.assert_array_equal(
        done(A.Augment([A.Normalize(128, 64)]), noise(5, 2)).shape, (5, 2, 3)
    )


@pytest.mark.parametrize(
    ("spec", "record", "text"),
    [
        (
            DECODE,
            "photo.jpg",
            "Decode: record is a str; must be a file's bytes, or a uint8 array of them; read the "
            "file",
        ),
        (DECODE, 7, "Decode: record is a int; must be a file's bytes"),
        (
            DECODE,
            noise(3, 4),
            "an array of shape (3, 4, 3) and dtype uint8; must be a file's bytes, or a uint8 array "
            "of them",
        ),
        (DECODE, noise(3, 4), "leave Decode() out where images are decoded already"),
        (
            A.Augment([A.Flip()]),
            b"abc",
            "record is a bytes; must be an image, as a numpy array of uint8",
        ),
        (
            A.Augment([A.Flip()]),
            np.zeros(9, np.uint8),
            "shape (9,) and dtype uint8; must be an image, as a numpy array of uint8",
        ),
        (
            A.Augment([A.Flip()]),
            np.zeros((2, 2, 3)),
            "dtype float64; must be an image, as a numpy array of uint8",
        ),
        (A.Augment([A.Flip()]), np.zeros((2, 2), np.uint16), "uint16; must be an image, as a"),
        (A.Augment([A.Flip()]), np.zeros((2, 2), np.uint16), "behind: convert it in transform="),
        (A.Augment([A.Flip()]), b"abc", "behind: put Decode() first for files"),
        (A.Augment([A.Flip()]), np.zeros((2, 2, 4), np.uint8), "or with 1 or 3 channels behind"),
        (A.Augment([A.Flip()]), np.zeros((0, 2, 3), np.uint8), "shape (0, 2, 3)"),
        (
            A.Augment([A.Normalize((1, 2, 3), 4)]),
            noise(2, 2, 1),
            "Normalize(mean=(1.0, 2.0, 3.0)): the image has 1 channel:",
        ),
        (
            A.Augment([A.Flip()], images="image"),
            (noise(2, 2),),
            "Augment(images='image'): no such leaf",
        ),
        (A.Augment([A.Flip()]), (), "a record is (): must have at least an image"),
        (
            A.Augment([A.Flip()], boxes=1),
            (noise(2, 2), np.zeros(3)),
            "a record's boxes are of shape (3,)",
        ),
    ],
)
def test_a_mistake_gives_a_sentence_that_helps(spec: A.Augment, record: Any, text: str) -> None:
    assert text in refused(spec, record)
