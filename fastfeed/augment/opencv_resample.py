"""Resizing as a weighted sum of pixels, first down the columns and then along the rows: the filters
of DALI's resize.

OpenCV's filters have no standard antialiasing (INTER_AREA is a box), and its cubic filter has other
weights (a = -0.75; here -0.5, Catmull and Rom, "A class of local interpolating splines", 1974).
Beyond the image its border is repeated.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fastfeed.augment.image_leaves import Image

FILTER_RADIUS = {"linear": 1, "cubic": 2}  # pixels to each side


def resample(image: Image, size: tuple[int, int], *, kind: str, antialias: bool) -> Image:
    """Return `image`, (height, width) or (height, width, channels), resized to `size`, and rounded
    in its dtype.

    With `antialias` the filter widens as much as the image shrinks.
    """
    high, wide = image.shape[:2]
    work: Image = image.reshape(high, -1).astype(np.float32)
    if size[0] != high:
        work = _summed(work, _taps(high, size[0], kind=kind, antialias=antialias))
    if size[1] != wide:
        # Transposed: gathering whole rows is several times as fast as gathering columns.
        turned = np.ascontiguousarray(work.reshape(size[0], wide, -1).swapaxes(0, 1)).reshape(
            wide, -1
        )
        turned = _summed(turned, _taps(wide, size[1], kind=kind, antialias=antialias))
        work = turned.reshape(size[1], size[0], -1).swapaxes(0, 1)
    most = np.iinfo(image.dtype).max
    out: Image = np.rint(work.reshape(*size, *image.shape[2:]))
    return np.clip(out, 0, most, out=out).astype(image.dtype)


def nearest(image: Image, size: tuple[int, int]) -> Image:
    """Return the resized image, in which each new pixel is the old one that contains its centre.

    OpenCV's INTER_NEAREST picks by the upper left corner, and its INTER_NEAREST_EXACT picks a
    neighbour if the centre lies between two pixels.
    """
    high, wide = image.shape[:2]
    down, along = np.float32(high) / np.float32(size[0]), np.float32(wide) / np.float32(size[1])
    half = np.float32(0.5)
    # In float32 as in DALI, down the columns as a running sum: the rounding decides which pixel it
    # is if a centre lies on an edge.
    steps = np.full(size[0], down)
    steps[0] *= half
    rows = np.minimum(np.add.accumulate(steps).astype(np.intp), high - 1)
    columns = (np.arange(size[1], dtype=np.float32) + half) * along
    columns = np.minimum(columns.astype(np.intp), wide - 1)
    picked: Image = image.take(rows, 0).take(columns, 1)
    return picked


def _taps(old: int, new: int, *, kind: str, antialias: bool) -> tuple[Any, Any]:
    """Return the indices of the `old` rows that each of the `new` ones consists of, (new, taps),
    and their weights."""
    step = old / new
    stretch = max(1.0, step) if antialias else 1.0
    reach = FILTER_RADIUS[kind] * stretch
    centre = (np.arange(new) + 0.5) * step - 0.5
    first = np.ceil(centre - reach).astype(np.intp)
    rows = first[:, None] + np.arange(math.floor(2 * reach) + 1)
    distance = np.abs(rows - centre[:, None]) / stretch
    weights = np.maximum(0.0, 1 - distance) if kind == "linear" else _cubic(distance)
    weights /= weights.sum(1, keepdims=True)
    return np.clip(rows, 0, old - 1), weights.astype(np.float32)


def _cubic(distance: Any) -> Any:
    inner = (1.5 * distance - 2.5) * distance * distance + 1
    outer = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return np.where(distance < 1, inner, np.where(distance < 2, outer, 0.0))


def _summed(rows: Image, taps_and_weights: tuple[Any, Any]) -> Image:
    taps, weights = taps_and_weights
    out: Image = rows[taps[:, 0]]
    out *= weights[:, :1]
    part = np.empty_like(out)
    for tap in range(1, taps.shape[1]):
        np.take(rows, taps[:, tap], axis=0, out=part, mode="clip")
        part *= weights[:, tap : tap + 1]
        out += part
    return out
