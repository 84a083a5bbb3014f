"""The header of a JPEG or PNG file, read from its first bytes without decoding or copying.

Markers: ITU-T T.81, annex B. Chunks: W3C, Portable Network Graphics (3rd edition). Orientation:
EXIF 2.32, tag 0x0112.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fastfeed.errors import BadImage

Encoded: TypeAlias = "bytes | bytearray | memoryview | np.ndarray[Any, np.dtype[np.uint8]]"
Bytes: TypeAlias = bytes | bytearray | memoryview  # with a fast index that returns an int

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}  # by colour type; a palette (3) holds colours
EXIF_SIGNATURE, EXIF_CHUNK = b"Exif\0\0", b"eXIf"
EXIF_SEARCH_NBYTES = 2**13  # bytes at the end of a PNG that may contain its orientation, too
ORIENTATION = 0x0112
START_OF_SCAN, APP1 = 0xDA, 0xE1
FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
MARKERS_WITHOUT_SEGMENT = frozenset({0x01, *range(0xD0, 0xD8)})
JPEG_END, PNG_END = b"\xff\xd9", b"IEND"
# bytes at the end of a file that usually contain its end marker; cameras append data to it
END_SEARCH_NBYTES = 64
OTHER_SIGNATURES = (
    (b"GIF8", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"<", "text, such as HTML or SVG"),
)


class ImageHeader(NamedTuple):
    """An image as it will be after decoding.

    (height, width) are turned as EXIF specifies; `channels` are those of the file (4: CMYK or with
    alpha), `bits` those of a channel, `format` is "JPEG" or "PNG", and `orientation` that of EXIF
    (1: unchanged).
    """

    height: int
    width: int
    channels: int
    bits: int
    format: str
    orientation: int = 1
    palette: bool = False


def read_header(data: Encoded, *, max_pixels: int) -> ImageHeader:
    """Return the header of a whole file in memory.

    Raise BadImage for an empty file, another format, a damaged header, a file without its end, and
    more pixels than `max_pixels`, for which no memory should be allocated.
    """
    view: Bytes = memoryview(data) if isinstance(data, np.ndarray) else data  # type: ignore[arg-type]
    if not len(view):
        raise BadImage("the file is empty: 0 bytes")
    try:
        if view[0] == 0xFF and view[1] == 0xD8:
            header = _jpeg(view)
        elif bytes(view[:8]) == PNG_SIGNATURE:
            header = _png(view)
        else:
            raise BadImage(_unknown_format(view))
    except (struct.error, IndexError):
        raise BadImage(f"truncated: it ends within its header, after {len(view)} bytes") from None
    if header.height * header.width > max_pixels:
        raise BadImage(
            f"its header says {header.height} x {header.width} pixels, and {max_pixels} are the "
            "most that Decode(max_pixels=...) allows"
        )
    return header


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
        if marker in MARKERS_WITHOUT_SEGMENT:
            at += 2
            continue
        length = (data[at + 2] << 8) | data[at + 3]
        if marker in FRAME_MARKERS:
            frame = at + 4
        elif marker == APP1 and orientation == 1 and data[at + 4 : at + 10] == EXIF_SIGNATURE:
            orientation = _orientation(data, at + 10, end=at + 2 + length)
        at += 2 + length
    if frame is None:
        raise BadImage("damaged JPEG: its header has no size")
    bits, height, width, channels = struct.unpack_from(">BHHB", data, frame)
    if not height or not width:
        raise BadImage(f"damaged JPEG: its header says {height} x {width} pixels")
    _refuse_truncated(data, JPEG_END, kind="JPEG", pixels=at)
    if orientation > 4:
        height, width = width, height
    return ImageHeader(height, width, channels, bits, "JPEG", orientation)


def _png(data: Bytes) -> ImageHeader:
    length, kind, width, height, bits, colour = struct.unpack_from(">I4sIIBB", data, 8)
    if length != 13 or kind != b"IHDR" or colour not in PNG_CHANNELS or not height or not width:
        raise BadImage("damaged PNG: its first chunk is no header of an image")
    at, orientation = 8, 1
    while True:
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind == EXIF_CHUNK:
            orientation = _orientation(data, at + 8, end=at + 8 + length)
        if kind in (b"IDAT", PNG_END):
            break
        at += 12 + length
    _refuse_truncated(data, PNG_END, kind="PNG", pixels=at)
    if orientation == 1:
        orientation = _orientation_after_pixels(data, at)
    if orientation > 4:
        height, width = width, height
    return ImageHeader(height, width, PNG_CHANNELS[colour], bits, "PNG", orientation, colour == 3)


def _orientation_after_pixels(data: Bytes, pixels: int) -> int:
    """Return the orientation in a chunk after the pixels of a PNG, where some programs write it.

    The chunk is searched near the end, and recognized by its checksum.
    """
    near = bytes(data[max(pixels, len(data) - EXIF_SEARCH_NBYTES) :])
    end = len(near)
    while (at := near.rfind(EXIF_CHUNK, 4, end)) > 0:
        (length,) = struct.unpack_from(">I", near, at - 4)
        content, check = near[at : at + 4 + length], near[at + 4 + length : at + 8 + length]
        if check == zlib.crc32(content).to_bytes(4, "big"):
            return _orientation(content, 4, end=len(content))
        end = at
    return 1


def _refuse_truncated(data: Bytes, mark: bytes, *, kind: str, pixels: int) -> None:
    """Raise BadImage for a file without its end.

    The marker is searched after the header, which may hold a thumbnail with another end marker, and
    near the end first.
    """
    if (
        bytes(data[max(pixels, len(data) - END_SEARCH_NBYTES) :]).rfind(mark) < 0
        and bytes(data[pixels:]).rfind(mark) < 0
    ):
        raise BadImage(
            f"truncated {kind}: the end of the image is missing ({len(data)} bytes are there)"
        )


def _orientation(data: Bytes, start: int, *, end: int) -> int:
    """Return the orientation of a block of EXIF; 1 if it has none that is valid."""
    order = {b"II": "<", b"MM": ">"}.get(bytes(data[start : start + 2]))
    if order is None:
        return 1
    end = min(end, len(data))
    try:
        (offset,) = struct.unpack_from(order + "I", data, start + 4)
        (count,) = struct.unpack_from(order + "H", data, start + offset)
        first = start + offset + 2
        for entry in range(first, min(first + 12 * count, end - 11), 12):
            tag, kind = struct.unpack_from(order + "HH", data, entry)
            if tag == ORIENTATION:
                (value,) = struct.unpack_from(order + "H", data, entry + 8)
                return value if kind == 3 and 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1


def _unknown_format(data: Bytes) -> str:
    head = bytes(data[:16])
    kind = next((name for mark, name in OTHER_SIGNATURES if head.startswith(mark)), "")
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        kind = "WebP"
    return f"neither JPEG nor PNG{f' but {kind}' if kind else ''}: it begins with {head[:8]!r}"
