"""Headers of files, compared with a decoder, and every kind of file that cannot become pixels."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cv2")
import cv2

from fastfeed.augment.images import ImageHeader, header_of
from fastfeed.augment.operations import Decode
from fastfeed.errors import BadImage
from tests.augment.pictures import (
    bomb,
    chunk,
    images,
    jpeg,
    photographs,
    png,
    smooth,
    turned,
    with_segment,
)

MOST = 10**6
AS_GIVEN = cv2.IMREAD_UNCHANGED


def header_in(data: Any) -> ImageHeader:
    return header_of(data, Decode(max_pixels=MOST), name="record")


def reason(data: Any) -> str:
    with pytest.raises(BadImage) as caught:
        header_in(data)
    return caught.value.reason


@settings(max_examples=60)
@given(images(), st.sampled_from([jpeg, png]))
def test_headers_say_what_a_decoder_finds(image: Any, encode: Any) -> None:
    data = encode(image)
    header = header_in(data)
    found = cv2.imdecode(np.frombuffer(data, np.uint8), AS_GIVEN)
    assert header[:2] == found.shape[:2]
    assert header.channels == (found.shape[2] if found.ndim == 3 else 1)
    assert header.bits == 8
    assert header.format == {jpeg: "JPEG", png: "PNG"}[encode]


def test_headers_of_photographs() -> None:
    for data in photographs(40):
        header = header_in(data)
        assert header[:2] == cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR).shape[:2]


@pytest.mark.parametrize(
    "more", [b"", chunk(b"tEXt", b"k\0eXIf"), chunk(b"tEXt", b"k\0" + bytes(5000))], ids=len
)
def test_an_orientation_behind_the_pixels_of_a_png(more: bytes) -> None:
    data = turned(png(smooth(4, 9)), 6, behind=True)
    data = data[:-12] + more + data[-12:]
    assert header_in(data)[:2] == (9, 4) == cv2.imdecode(np.frombuffer(data, np.uint8), 1).shape[:2]


def test_pixels_that_look_like_an_orientation_turn_nothing() -> None:
    noise = turned(png(smooth(4, 9)), 6)[37:60]
    data = png(smooth(4, 9))
    data = data[:-12] + chunk(b"fdAT", noise) + data[-12:]
    assert header_in(data)[:2] == (4, 9)


@pytest.mark.parametrize(
    "kind", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)]
)
def test_any_bytes_will_do(kind: Any) -> None:
    assert header_in(kind(jpeg(smooth(5, 7)))) == ImageHeader(5, 7, 3, 8, "JPEG")
    assert header_in(kind(png(smooth(5, 7, 1)))) == ImageHeader(5, 7, 1, 8, "PNG")
    assert "truncated" in reason(kind(jpeg(smooth(5, 7))[:-5]))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("encode", [jpeg, png])
def test_sizes_are_turned_as_exif_says(orientation: int, order: str, encode: Any) -> None:
    data = turned(encode(smooth(4, 9)), orientation, order=order)
    header = header_in(data)
    assert header[:2] == ((9, 4) if orientation > 4 else (4, 9))
    assert header[:2] == cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR).shape[:2]


@pytest.mark.parametrize(
    "tiff",
    [
        b"",
        b"XX*\0" + bytes(20),
        b"II*\0" + struct.pack("<I", 2**31),
        b"II*\0" + struct.pack("<IH", 8, 65535),
        b"II*\0" + struct.pack("<IHHHIHH", 8, 1, 0x0112, 3, 1, 9, 0),
        b"II*\0" + struct.pack("<IHHHII", 8, 1, 0x0112, 4, 1, 6),
    ],
    ids=["none", "no order", "beyond", "many", "nine", "long"],
)
def test_exif_that_says_nothing_turns_nothing(tiff: bytes) -> None:
    data = with_segment(jpeg(smooth(4, 9)), 0xE1, b"Exif\0\0" + tiff)
    assert header_in(data) == ImageHeader(4, 9, 3, 8, "JPEG")


def test_a_second_block_of_metadata_hides_no_exif() -> None:
    data = with_segment(turned(jpeg(smooth(4, 9)), 6), 0xE1, b"http://ns.adobe.com/xap/1.0/\0<x/>")
    assert header_in(data)[:2] == (9, 4)


def test_a_thumbnail_s_end_is_not_the_image_s() -> None:
    data = with_segment(jpeg(smooth(40, 90)), 0xE1, b"Exif\0\0" + jpeg(smooth(3, 3)))
    assert header_in(data)[:2] == (40, 90)
    assert "truncated JPEG: the end of the image is missing" in reason(data[:-20])


@pytest.mark.parametrize("encode", [jpeg, png])
@pytest.mark.parametrize("nbytes", [1, 63, 64, 65, 5000])
def test_what_cameras_append_is_no_harm(encode: Any, nbytes: int) -> None:
    assert header_in(encode(smooth(5, 7)) + b"x" * nbytes)[:2] == (5, 7)


@given(st.data())
def test_no_cut_file_is_taken_for_a_whole_one(data: Any) -> None:
    whole = data.draw(st.sampled_from([jpeg, png]))(smooth(20, 30))
    text = reason(whole[: data.draw(st.integers(2, len(whole) - 1))])
    assert "truncated" in text or "neither JPEG nor PNG" in text


@given(
    st.binary(max_size=60),
    st.sampled_from([b"", b"\xff\xd8", b"\xff\xd8\xff\xe1", b"\x89PNG\r\n\x1a\n"]),
)
def test_no_bytes_do_more_than_raise_a_bad_image(rest: bytes, start: bytes) -> None:
    with contextlib.suppress(BadImage):
        header = header_in(start + rest)
        assert header.height > 0 and header.width > 0


def test_every_reason_says_what_there_is() -> None:
    whole = jpeg(smooth(5, 7))
    assert reason(b"") == "the file is empty: 0 bytes"
    assert "neither JPEG nor PNG: it begins with b'GIF89a" in reason(b"GIF89a" + bytes(9))
    assert "WEBP" in reason(b"RIFF\0\0\0\0WEBPVP8 ")
    assert reason(b"\xff") == "truncated: it ends after 1 bytes"
    assert "no marker at byte 2" in reason(b"\xff\xd8" + bytes(50))
    assert "its header has no size" in reason(b"\xff\xd8\xff\xda\0\2")
    assert "no header of an image" in reason(b"\x89PNG\r\n\x1a\n" + chunk(b"IDAT", bytes(13)))
    frame = whole.index(b"\xff\xc0")
    nothing = whole[: frame + 5] + b"\0\0" + whole[frame + 7 :]
    assert "0 x 7 pixels" in reason(nothing)
    assert "PNG: its first chunk" in reason(bomb(0, 5))


def test_a_bomb_is_known_by_its_header() -> None:
    assert "30000 x 40000 pixels, and 1000000 are the most that Decode(max_pixels=...)" in reason(
        bomb(30_000, 40_000)
    )
    assert header_in(bomb(1000, 1000))[:2] == (1000, 1000)
    assert "1000 x 1001" in reason(bomb(1000, 1001))
