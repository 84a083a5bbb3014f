"""Leaves of records that should be images: the header of a JPEG or PNG file, read from its bytes
without decoding or copying, and the size of an image.

Markers: ITU-T T.81, annex B. Chunks: W3C, Portable Network Graphics (3rd edition). Orientation:
EXIF 2.32, tag 0x0112.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fastfeed.augment.operations import Decode, Size
from fastfeed.augment.spec import Augment
from fastfeed.errors import BadImage, SpecError

Image = np.ndarray[Any, Any]
Encoded: TypeAlias = "bytes | bytearray | memoryview | np.ndarray[Any, np.dtype[np.uint8]]"
Bytes: TypeAlias = bytes | bytearray | memoryview  # with a fast index that returns an int

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}  # by colour type; a palette (3) holds colours
ORIENTATION = 0x0112
START_OF_SCAN, APP1 = 0xDA, 0xE1
FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
JPEG_END = b"\xff\xd9"
# bytes at the end of a JPEG that usually contain its end marker; cameras append data to it
END_SEARCH_NBYTES = 64


class ImageHeader(NamedTuple):
    """An image as it will be after decoding: (height, width) are turned as EXIF specifies,
    `channels` are those of the file (4: CMYK or with alpha), `bits` those of a channel, and
    `format` is "JPEG" or "PNG"."""

    height: int
    width: int
    channels: int
    bits: int
    format: str


def size_of(leaf: Any, spec: Augment, *, name: str) -> Size:
    """Return (height, width) of an image; that of a file is in its header. Raise BadImage, and
    SpecError for a leaf that is not an image."""
    decode = spec.first(Decode)
    if decode is None:
        high, wide = pixels_of(leaf, name).shape[:2]
        return high, wide
    header = header_of(encoded_of(leaf, name), decode, name=name)
    if header.bits > 8 and header.channels == 1 and decode.channels == "gray":
        raise BadImage(
            f"it has {header.bits} bits, of which Decode keeps the upper 8: read its numbers in "
            'transform= and scale them to 8 bits there, or use Decode(channels="rgb")',
            leaf=name,
        )
    return header[:2]


def encoded_of(leaf: Any, name: str) -> Encoded:
    """Return the bytes of a file. Raise SpecError if the record has something else."""
    if isinstance(leaf, (bytes, bytearray, memoryview)):
        return leaf
    if isinstance(leaf, np.ndarray) and leaf.ndim == 1 and leaf.dtype == np.uint8:
        return np.ascontiguousarray(leaf)
    hint = ""
    if isinstance(leaf, np.ndarray) and leaf.ndim in (2, 3):
        hint = ": leave Decode() out where images are decoded already"
    elif hasattr(leaf, "encode"):
        hint = "; read the file in transform=, as in open(path, 'rb').read()"
    raise SpecError(
        f"Decode: {name} is {_shown(leaf)}; must be a file's bytes, or a uint8 array of them{hint}"
    )


def pixels_of(leaf: Any, name: str) -> Image:
    """Return an array of pixels, without the axis of a single channel. Raise SpecError for any
    other leaf."""
    if isinstance(leaf, np.ndarray) and leaf.dtype == np.uint8 and leaf.size:
        if leaf.ndim == 2 or (leaf.ndim == 3 and leaf.shape[2] == 3):
            return leaf
        if leaf.ndim == 3 and leaf.shape[2] == 1:
            return leaf[:, :, 0]
    encoded = isinstance(leaf, (bytes, bytearray, memoryview)) or getattr(leaf, "ndim", 0) == 1
    raise SpecError(
        f"Augment: {name} is {_shown(leaf)}; must be an image, as a numpy array of uint8 and shape "
        "(height, width), or with 1 or 3 channels behind: "
        f"{'put Decode() first for files' if encoded else 'convert it in transform='}"
    )


def header_of(data: Encoded, decode: Decode, *, name: str) -> ImageHeader:
    """Return the header of a whole file in memory, the leaf `name`.

    Raise BadImage for an empty file, another format, a damaged header, a file without its end, and
    more pixels than `decode` allows, for which no memory should be allocated.
    """
    view: Bytes = memoryview(data) if isinstance(data, np.ndarray) else data  # type: ignore[arg-type]
    try:
        header = _header(view)
        if header.height * header.width > decode.max_pixels:
            raise BadImage(
                f"its header says {header.height} x {header.width} pixels, and "
                f"{decode.max_pixels} are the most that Decode(max_pixels=...) allows"
            )
    except (struct.error, IndexError):
        raise BadImage(f"truncated: it ends after {len(view)} bytes", leaf=name) from None
    except BadImage as error:
        raise BadImage(error.reason, leaf=name) from None
    return header


def _shown(leaf: Any) -> str:
    if isinstance(leaf, np.ndarray):
        return f"an array of shape {leaf.shape} and dtype {leaf.dtype}"
    return f"a {type(leaf).__name__}"


def _header(data: Bytes) -> ImageHeader:
    if not len(data):
        raise BadImage("the file is empty: 0 bytes")
    if data[0] == 0xFF and data[1] == 0xD8:
        return _jpeg(data)
    if bytes(data[:8]) == PNG_SIGNATURE:
        return _png(data)
    raise BadImage(f"neither JPEG nor PNG: it begins with {bytes(data[:16])!r}")


def _jpeg(data: Bytes) -> ImageHeader:
    at, orientation = 2, 1
    frame: int | None = None
    while True:
        marker = data[at + 1]
        if data[at] != 0xFF:
            raise BadImage(f"damaged JPEG: no marker at byte {at}, where its header should go on")
        if marker == 0xFF:  # padding
            at += 1
            continue
        if marker == START_OF_SCAN:
            break
        length = (data[at + 2] << 8) | data[at + 3]
        if marker in FRAME_MARKERS:
            frame = at + 4
        elif marker == APP1 and orientation == 1 and data[at + 4 : at + 10] == b"Exif\0\0":
            orientation = _orientation(data[at + 10 : at + 2 + length])
        at += 2 + length
    if frame is None:
        raise BadImage("damaged JPEG: its header has no size")
    bits, height, width, channels = struct.unpack_from(">BHHB", data, frame)
    if not height or not width:
        raise BadImage(f"damaged JPEG: its header says {height} x {width} pixels")
    # after the header, which may hold a thumbnail with another end marker, and near the end first
    if (
        bytes(data[max(at, len(data) - END_SEARCH_NBYTES) :]).rfind(JPEG_END) < 0
        and bytes(data[at:]).rfind(JPEG_END) < 0
    ):
        raise BadImage(
            f"truncated JPEG: the end of the image is missing ({len(data)} bytes are there)"
        )
    return _turned(ImageHeader(height, width, channels, bits, "JPEG"), orientation)


def _png(data: Bytes) -> ImageHeader:
    length, kind, width, height, bits, colour = struct.unpack_from(">I4sIIBB", data, 8)
    if length != 13 or kind != b"IHDR" or colour not in PNG_CHANNELS or not height or not width:
        raise BadImage("damaged PNG: its first chunk is no header of an image")
    at, orientation = 8, 1
    while kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"eXIf" and orientation == 1:  # before or after the pixels
            orientation = _orientation(data[at + 8 : at + 8 + length])
        at += 12 + length
    if at > len(data):
        raise IndexError
    return _turned(ImageHeader(height, width, PNG_CHANNELS[colour], bits, "PNG"), orientation)


def _turned(header: ImageHeader, orientation: int) -> ImageHeader:
    high, wide, *rest = header
    return ImageHeader(wide, high, *rest) if orientation > 4 else header  # type: ignore[arg-type]


def _orientation(block: Bytes) -> int:
    """Return the orientation of a block of EXIF; 1 if it has none that is valid."""
    order = {b"II": "<", b"MM": ">"}.get(bytes(block[:2]))
    if order is None:
        return 1
    try:
        (offset,) = struct.unpack_from(order + "I", block, 4)
        (count,) = struct.unpack_from(order + "H", block, offset)
        for entry in range(offset + 2, offset + 2 + 12 * count, 12):
            tag, kind, _, value = struct.unpack_from(order + "HHIH", block, entry)
            if tag == ORIENTATION:
                return int(value) if kind == 3 and 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1
