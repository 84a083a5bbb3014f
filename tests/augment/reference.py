"""The operations in slow numpy, straight from their definitions. It shares no code with the
executors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastfeed.augment.operations import (
    Affine,
    Colour,
    Crop,
    Erase,
    Flip,
    GaussianBlur,
    Operation,
    RandomResizedCrop,
    Resize,
)

Image = np.ndarray[Any, Any]


def done(image: Image, op: Operation, numbers: Sequence[float]) -> Image:
    """Apply `op`, with its numbers, to an image of (height, width, channels)."""
    if isinstance(op, Crop):
        return window(image, *map(int, numbers), fill=op.fill)
    if isinstance(op, RandomResizedCrop):
        part = window(image, *map(int, numbers), fill=0)
        out = scaled(part.astype(float), op.size, antialias=op.antialias)
    elif isinstance(op, Resize):
        size = (int(numbers[0]), int(numbers[1]))
        out = scaled(image.astype(float), size, antialias=op.antialias)
    elif isinstance(op, Flip):
        return image[:: -1 if numbers[1] else 1, :: -1 if numbers[0] else 1]
    elif isinstance(op, Affine):
        out = warped(image.astype(float), numbers, fill=op.fill)
    elif isinstance(op, Colour):
        out = coloured(image.astype(float), numbers)
    elif isinstance(op, GaussianBlur):
        out = blurred(image.astype(float), *numbers)
    else:
        assert isinstance(op, Erase)
        return erased(image, numbers, fill=op.fill)
    return np.clip(np.rint(out), 0, 255).astype(np.uint8)


def window(image: Image, y: int, x: int, height: int, width: int, *, fill: float) -> Image:
    out = np.full((height, width, image.shape[2]), round(fill), image.dtype)
    for row in range(height):
        for column in range(width):
            if 0 <= y + row < image.shape[0] and 0 <= x + column < image.shape[1]:
                out[row, column] = image[y + row, x + column]
    return out


def scaled(image: Image, size: tuple[int, int], *, antialias: bool) -> Image:
    down, across = (
        _weights(old, new, antialias=antialias)
        for old, new in zip(image.shape[:2], size, strict=True)
    )
    return np.einsum("yh,hwc,xw->yxc", down, image, across)


def warped(image: Image, numbers: Sequence[float], *, fill: float) -> Image:
    """Warp bilinearly; beyond the image every pixel is `fill`."""
    high, wide, channels = image.shape
    matrix = np.array(numbers).reshape(2, 3)
    padded = np.full((high + 2, wide + 2, channels), float(round(fill)))
    padded[1:-1, 1:-1] = image
    out = np.empty_like(image)
    for y in range(high):
        for x in range(wide):
            # in `padded`, between centres of pixels
            left, top = matrix @ (x + 0.5, y + 0.5, 1) + 0.5
            column, row = math.floor(left), math.floor(top)
            if not (0 <= column <= wide and 0 <= row <= high):
                out[y, x] = round(fill)
                continue
            right, bottom = left - column, top - row
            square = padded[row : row + 2, column : column + 2]
            out[y, x] = np.einsum("y,yxc,x->c", (1 - bottom, bottom), square, (1 - right, right))
    return out


def coloured(image: Image, numbers: Sequence[float]) -> Image:
    matrix = np.array(numbers).reshape(3, 4)
    colours = image if image.shape[2] == 3 else np.repeat(image, 3, 2)
    out = colours @ matrix[:, :3].T + matrix[:, 3] * 255
    return out if image.shape[2] == 3 else out[:, :, :1]


def blurred(image: Image, sigma: float, size: float) -> Image:
    if size <= 1:
        return image
    reach = int(size) // 2
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    kernel /= kernel.sum()
    for axis in (0, 1):
        places = [
            [_mirrored(at + off, image.shape[axis]) for off in range(-reach, reach + 1)]
            for at in _all(image, axis)
        ]
        image = np.moveaxis(
            np.tensordot(np.take(image, places, axis), kernel, (axis + 1, 0)), -1, -1
        )
    return image


def erased(image: Image, numbers: Sequence[float], *, fill: float) -> Image:
    out = image.copy()
    y, x, height, width = map(int, numbers)
    out[y : y + height, x : x + width] = round(fill)
    return out


def _all(image: Image, axis: int) -> range:
    return range(image.shape[axis])


def _mirrored(place: int, length: int) -> int:
    """Mirror without the outermost pixel: 2 1 | 0 1 2 3 | 2 1."""
    if length == 1:
        return 0
    place %= 2 * (length - 1)
    return min(place, 2 * (length - 1) - place)


def _weights(old: int, new: int, *, antialias: bool) -> Image:
    """Return the share of each old pixel in each new one, of shape (new, old)."""
    ratio = old / new
    wider = max(1.0, ratio) if antialias else 1.0
    out = np.zeros((new, old))
    for at in range(new):
        centre = (at + 0.5) * ratio - 0.5
        for place in range(math.floor(centre - wider) - 1, math.ceil(centre + wider) + 2):
            out[at, min(max(place, 0), old - 1)] += max(0.0, 1 - abs(place - centre) / wider)
        out[at] /= out[at].sum()
    return out
