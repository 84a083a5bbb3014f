"""Resizing as a weighted sum of pixels, first down the columns and then along the rows: the filters
of DALI's resize.

OpenCV's own have no standard antialiasing (INTER_AREA is a box), and its cubic has other weights (a
= -0.75; here -0.5, Catmull and Rom, "A class of local interpolating splines", 1974). Beyond the
image its border is repeated.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Image = np.ndarray[Any, Any]
REACH = {"linear": 1, "cubic": 2}  # pixels to each side


def resample(image: Image, size: tuple[int, int], *, kind: str, antialias: bool) -> Image:
    """Return `image` (height, width) or (height, width, channels) as (height, width) = `size`, in
    its dtype, rounded.

    With `antialias` the filter gets wider by as much as the image gets smaller.
    """
    high, wide = image.shape[:2]
    work: Image = image.reshape(high, -1).astype(np.float32)
    if size[0] != high:
        work = _summed(work, _taps(high, size[0], kind=kind, antialias=antialias))
    if size[1] != wide:
        # Pixels of a row as rows: gathering whole rows is several times as fast as columns.
        turned = np.ascontiguousarray(work.reshape(size[0], wide, -1).swapaxes(0, 1)).reshape(
            wide, -1
        )
        turned = _summed(turned, _taps(wide, size[1], kind=kind, antialias=antialias))
        work = turned.reshape(size[1], size[0], -1).swapaxes(0, 1)
    most = np.iinfo(image.dtype).max
    out = np.rint(work.reshape(*size, *image.shape[2:]))
    cut: Image = np.clip(out, 0, most, out=out)
    return cut.astype(image.dtype)


def nearest(image: Image, size: tuple[int, int]) -> Image:
    """Return the pixel that contains each new one's centre. OpenCV's INTER_NEAREST picks by the
    upper left corner, and its INTER_NEAREST_EXACT a neighbour if the centre lies between two."""
    rows, columns = (_picked(old, new) for old, new in zip(image.shape[:2], size, strict=True))
    picked: Image = image.take(rows, 0).take(columns, 1)
    return picked


def _picked(old: int, new: int) -> Any:
    """Return the picked indices, in float32 as DALI computes them: this decides if a centre lies on
    an edge."""
    found = (np.arange(new, dtype=np.float32) + np.float32(0.5)) * np.float32(old / new)
    return np.minimum(found.astype(np.intp), old - 1)


def _taps(old: int, new: int, *, kind: str, antialias: bool) -> tuple[Any, Any]:
    """Return for each of `new` rows which of the `old` ones it consists of, (new, taps), and their
    weights."""
    step = old / new
    stretch = max(1.0, step) if antialias else 1.0
    reach = REACH[kind] * stretch
    centre = (np.arange(new) + 0.5) * step - 0.5
    first = np.ceil(centre - reach).astype(np.intp)
    rows = first[:, None] + np.arange(math.floor(2 * reach) + 1)
    far = np.abs(rows - centre[:, None]) / stretch
    weights = _triangle(far) if kind == "linear" else _cubic(far)
    weights /= weights.sum(1, keepdims=True)
    return np.clip(rows, 0, old - 1), weights.astype(np.float32)


def _triangle(far: Any) -> Any:
    return np.maximum(0.0, 1 - far)


def _cubic(far: Any) -> Any:
    near = (1.5 * far - 2.5) * far * far + 1
    tail = ((-0.5 * far + 2.5) * far - 4) * far + 2
    return np.where(far < 1, near, np.where(far < 2, tail, 0.0))


def _summed(rows: Image, made_of: tuple[Any, Any]) -> Image:
    taps, weights = made_of
    out = rows[taps[:, 0]]
    out *= weights[:, :1]
    part = np.empty_like(out)
    for tap in range(1, taps.shape[1]):
        np.take(rows, taps[:, tap], axis=0, out=part, mode="clip")
        part *= weights[:, tap : tap + 1]
        out += part
    summed: Image = out
    return summed
