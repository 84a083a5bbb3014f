"""The steps of a program in slow numpy, straight from their definitions. It shares no code with the
executors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastfeed.augment.steps import (
    Blur,
    Colour,
    Cutout,
    FixedWindow,
    Mirror,
    ProgramStep,
    RandomWindow,
    Scale,
    Warp,
)

Image = np.ndarray[Any, Any]


def done(image: Image, step: ProgramStep, numbers: Sequence[float]) -> Image:
    """Apply `step`, with its numbers, to an image of (height, width, channels)."""
    most = np.iinfo(image.dtype).max
    if isinstance(step, (RandomWindow, FixedWindow)):
        return window(image, *map(int, numbers), fill=getattr(step, "fill", 0))
    if isinstance(step, Scale):
        out = scaled(image.astype(float), (int(numbers[0]), int(numbers[1])), step)
    elif isinstance(step, Mirror):
        return image[:: -1 if numbers[1] else 1, :: -1 if numbers[0] else 1]
    elif isinstance(step, Warp):
        out = warped(image.astype(float), numbers, fill=step.fill)
    elif isinstance(step, Colour):
        out = coloured(image.astype(float), numbers, most=most)
    elif isinstance(step, Blur):
        out = blurred(image.astype(float), *numbers)
    else:
        assert isinstance(step, Cutout)
        return erased(image, numbers, fill=step.fill)
    return np.clip(np.rint(out), 0, most).astype(image.dtype)


def window(image: Image, y: int, x: int, height: int, width: int, *, fill: float) -> Image:
    out = np.full((height, width, image.shape[2]), round(fill), image.dtype)
    for row in range(height):
        for column in range(width):
            if 0 <= y + row < image.shape[0] and 0 <= x + column < image.shape[1]:
                out[row, column] = image[y + row, x + column]
    return out


def scaled(image: Image, size: tuple[int, int], step: Scale) -> Image:
    pick = step.interpolation == "nearest"
    down = (
        _picked_rows(image.shape[0], size[0]) if pick else _weights(image.shape[0], size[0], step)
    )
    across = _weights(image.shape[1], size[1], step)
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


def coloured(image: Image, numbers: Sequence[float], *, most: int) -> Image:
    matrix = np.array(numbers).reshape(3, 4)
    colours = image if image.shape[2] == 3 else np.repeat(image, 3, 2)
    out = colours @ matrix[:, :3].T + matrix[:, 3] * most
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
    for y, x, height, width in np.array(numbers, int).reshape(-1, 4):
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


def _picked_rows(old: int, new: int) -> Image:
    """Return 1 for the old row that each new one is, as DALI goes down an image: step by step."""
    out, ratio = np.zeros((new, old)), np.float32(old) / np.float32(new)
    centre = ratio / 2
    for at in range(new):
        out[at, min(old - 1, int(centre))] = 1
        centre += ratio
    return out


def _weights(old: int, new: int, step: Scale) -> Image:
    """Return the share of each old pixel in each new one, of shape (new, old)."""
    ratio = old / new
    wider = max(1.0, ratio) if step.antialias else 1.0
    kernel, reach = _kernel(step.interpolation)
    out = np.zeros((new, old))
    for at in range(new):
        centre = (at + 0.5) * ratio - 0.5
        if step.interpolation == "nearest":
            out[at, min(old - 1, int(np.float32(at + 0.5) * np.float32(ratio)))] = 1
            continue
        for place in range(
            math.floor(centre - reach * wider) - 1, math.ceil(centre + reach * wider) + 2
        ):
            out[at, min(max(place, 0), old - 1)] += kernel(abs(place - centre) / wider)
        out[at] /= out[at].sum()
    return out


def _kernel(name: str) -> tuple[Callable[[float], float], int]:
    def triangle(far: float) -> float:
        return max(0.0, 1 - far)

    def cubic(far: float) -> float:
        if far < 1:
            return 1.5 * far**3 - 2.5 * far**2 + 1
        return -0.5 * far**3 + 2.5 * far**2 - 4 * far + 2 if far < 2 else 0.0

    return (cubic, 2) if name == "cubic" else (triangle, 1)
