"""Images for tests: generated or from $FASTFEED_DATA, encoded, turned, damaged."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from hypothesis import strategies as st

SIDES = st.one_of(st.integers(1, 24), st.sampled_from([1, 90]))
Image = np.ndarray[Any, Any]


def noise(
    height: int, width: int, channels: int = 3, *, dtype: str = "uint8", seed: int = 0
) -> Image:
    """Return independent random pixels, without a channel axis for 0 channels."""
    shape = (height, width, channels) if channels else (height, width)
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max + 1, shape, dtype)


def smooth(height: int, width: int, channels: int = 3, *, seed: int = 0) -> Image:
    """Return an image that an encoder hardly changes."""
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    planes = [
        127 + 100 * np.sin(3 * (a * x + b * y) + c)
        for a, b, c in np.random.default_rng(seed).random((3, 3))
    ]
    return np.stack(planes[:channels], 2).round().astype(np.uint8)


@st.composite
def images(draw: Any, channels: tuple[int, ...] = (0, 1, 3)) -> Image:
    """Draw images, including 1 x 1, extreme aspect ratios, grey and colours."""
    shape = draw(SIDES), draw(SIDES), draw(st.sampled_from(channels))
    return noise(*shape, seed=draw(st.integers(0, 9)))


def jpeg(image: Image, *, quality: int = 95) -> bytes:
    """Encode an image whose first channel is red, as everywhere in fastfeed."""
    return _encoded(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])


def png(image: Image) -> bytes:
    return _encoded(".png", image, [])


def photographs(most: int = 8) -> list[bytes]:
    """Return files of photographs; generated ones if there are none."""
    named = os.environ.get("FASTFEED_DATA")
    files = sorted((Path(named) / "photos").glob("*.jpg"))[:most] if named else []
    return [file.read_bytes() for file in files] or [
        jpeg(smooth(60 + 7 * n, 80, seed=n)) for n in range(most)
    ]


def turned(data: bytes, orientation: int, *, order: str = "<", behind: bool = False) -> bytes:
    """Return the file with an EXIF orientation; in a PNG, `behind` its pixels."""
    mark = b"II*\0" if order == "<" else b"MM\0*"
    entry = struct.pack(order + "HHIHH", 0x0112, 3, 1, orientation, 0)
    tiff = mark + struct.pack(order + "IH", 8, 1) + entry + bytes(4)
    if data[:2] == b"\xff\xd8":
        return with_segment(data, 0xE1, b"Exif\0\0" + tiff)
    at = len(data) - 12 if behind else 33
    return data[:at] + chunk(b"eXIf", tiff) + data[at:]


def as_turned(image: Image, orientation: int) -> Image:
    """Return the image turned by numpy as EXIF 2.32 defines each orientation."""
    if orientation > 4:
        image = image.swapaxes(0, 1)
    across = {2: True, 3: True, 6: True, 7: True}.get(orientation, False)
    down = {3: True, 4: True, 7: True, 8: True}.get(orientation, False)
    return image[:: -1 if down else 1, :: -1 if across else 1]


def with_segment(data: bytes, marker: int, payload: bytes) -> bytes:
    """Return a JPEG with one more segment at its beginning."""
    return data[:2] + struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload + data[2:]


def chunk(kind: bytes, payload: bytes) -> bytes:
    """Return a chunk of a PNG."""
    return (
        struct.pack(">I", len(payload))
        + kind
        + payload
        + struct.pack(">I", zlib.crc32(kind + payload))
    )


def bomb(height: int, width: int) -> bytes:
    """Return a PNG whose header promises more pixels than its few bytes hold."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")
    )


def _encoded(kind: str, image: Image, options: list[int]) -> bytes:
    data = (
        image if image.ndim == 2 or image.shape[2] == 1 else cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    )
    done, out = cv2.imencode(kind, data, options)
    assert done
    return out.tobytes()


def rotten(file: bytes) -> bytes:
    """Return a PNG that cannot be decoded, although its header and its end are intact."""
    return file[:45] + bytes(8) + file[53:]
