"""The steps of a program in OpenCV: functions of an image and its row of the plan.

Grey images have two axes, as in OpenCV; colours are red, green, blue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from fastfeed.augment.image_leaves import Image
from fastfeed.augment.spec import PlacedStep
from fastfeed.augment.steps import (
    IDENTITY_WARP,
    MAX_LEVEL,
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
from fastfeed.augment.tones import IDENTITY_MATRIX
from fastfeed.errors import SpecError, required

with required("OpenCV", "opencv"):
    import cv2

Row: TypeAlias = Sequence[float]
StepFunction: TypeAlias = Callable[[Image, Row], Image]

WARP_INTERPOLATIONS = {
    "nearest": cv2.INTER_NEAREST,
    "linear": cv2.INTER_LINEAR,
    "cubic": cv2.INTER_CUBIC,
}
# Resizing is a weighted sum of pixels, first down the columns and then along the rows: the filters
# of DALI's resize. OpenCV's have no standard antialiasing (INTER_AREA is a box), and its cubic
# filter has other weights (a = -0.75; here -0.5, Catmull and Rom, "A class of local interpolating
# splines", 1974). Beyond the image its border is repeated.
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


def step_function(step: ProgramStep, start: int, *, mask: bool = False) -> StepFunction | None:
    """Return the function of `step`, whose numbers begin at `start` of a row; None if it has no
    effect.

    A mask is moved and not changed: pixels are picked, never blended, and those from outside are 0.
    """
    factory = (GEOMETRY_STEPS if mask else {**GEOMETRY_STEPS, **VALUE_STEPS}).get(type(step))
    return None if factory is None else factory(step, start, mask=mask)


def chain(program: Sequence[PlacedStep], *, mask: bool = False) -> StepFunction:
    """Return one function for the steps of `program`, in order. Its errors name the step."""
    pairs = [
        (placed.step, step_function(placed.step, placed.start, mask=mask)) for placed in program
    ]
    functions = [(step, do) for step, do in pairs if do is not None]

    def run(image: Image, row: Row) -> Image:
        try:
            for step, do in functions:  # noqa: B007  # read in the except clause
                image = do(image, row)
        except cv2.error as error:
            raise SpecError(
                f"{type(step).__name__}: OpenCV cannot do this to an image of shape {image.shape} "
                f"and dtype {image.dtype}: {str(error).strip()}"
            ) from None
        return image

    return run


def _window(step: RandomWindow, start: int, *, mask: bool) -> StepFunction:
    """Return a function that makes a view, so that the resize after it reads only the window."""

    def do(image: Image, row: Row) -> Image:
        y, x, height, width = row[start : start + 4]
        return image[y : y + height, x : x + width]  # whole numbers

    return do


def _fixed(step: FixedWindow, start: int, *, mask: bool) -> StepFunction:
    fill = 0 if mask else step.fill

    def do(image: Image, row: Row) -> Image:
        y, x, height, width = map(int, row[start : start + 4])
        inside = image[max(0, y) : max(0, y + height), max(0, x) : max(0, x + width)]
        if inside.shape[:2] == (height, width):
            return inside
        out = np.full(
            (height, width, *image.shape[2:]), _level(fill, image, op="Crop"), image.dtype
        )
        out[
            max(0, -y) : max(0, -y) + inside.shape[0], max(0, -x) : max(0, -x) + inside.shape[1]
        ] = inside
        return out

    return do


def _scale(step: Scale, start: int, *, mask: bool) -> StepFunction:
    kind = "nearest" if mask else step.interpolation
    smooth = step.antialias and kind != "nearest"

    def do(image: Image, row: Row) -> Image:
        height, width = int(row[start]), int(row[start + 1])
        high, wide = image.shape[:2]
        if (high, wide) == (height, width):
            return image
        if kind == "nearest":
            return nearest(image, (height, width))
        if kind == "linear" and not (smooth and (height < high or width < wide)):
            return cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
        return resample(image, (height, width), kind=kind, antialias=smooth)

    return do


def _mirror(step: Mirror, start: int, *, mask: bool) -> StepFunction | None:
    if not step.horizontal and not step.vertical:
        return None

    def do(image: Image, row: Row) -> Image:
        horizontal, vertical = row[start], row[start + 1]
        if not horizontal and not vertical:
            return image
        return cv2.flip(image, -1 if horizontal and vertical else int(bool(horizontal)))

    return do


def _warp(step: Warp, start: int, *, mask: bool) -> StepFunction:
    flags = (
        cv2.INTER_NEAREST if mask else WARP_INTERPOLATIONS[step.interpolation]
    ) | cv2.WARP_INVERSE_MAP
    fill = 0 if mask else step.fill

    def do(image: Image, row: Row) -> Image:
        a, b, c, d, e, f = row[start : start + 6]
        if (a, b, c, d, e, f) == IDENTITY_WARP:
            return image
        # from corners to centres of pixels: the (0, 0) of OpenCV is a centre
        matrix = np.array(((a, b, c + (a + b - 1) / 2), (d, e, f + (d + e - 1) / 2)))
        size = (image.shape[1], image.shape[0])
        level = _level(fill, image, op="Rotate, Affine")
        return cv2.warpAffine(image, matrix, size, flags=flags, borderValue=(level, level, level))

    return do


def _colour(step: Colour, start: int, *, mask: bool) -> StepFunction:
    def do(image: Image, row: Row) -> Image:
        numbers = tuple(row[start : start + 12])
        if numbers == IDENTITY_MATRIX:
            return image
        matrix = np.array(numbers).reshape(3, 4)
        matrix[:, 3] *= MAX_LEVEL[image.dtype.name]
        if image.ndim == 2:  # as three equal channels
            matrix = np.array(((matrix[0, :3].sum(), matrix[0, 3]),))
        return cv2.transform(image, matrix).reshape(image.shape)

    return do


def _blur(step: Blur, start: int, *, mask: bool) -> StepFunction:
    def do(image: Image, row: Row) -> Image:
        sigma, window = row[start], int(row[start + 1])
        return image if window <= 1 else cv2.GaussianBlur(image, (window, window), sigma)

    return do


def _cutout(step: Cutout, start: int, *, mask: bool) -> StepFunction:
    def do(image: Image, row: Row) -> Image:
        wiped = [row[at : at + 4] for at in range(start, start + step.numbers, 4) if row[at + 2]]
        if not wiped:
            return image
        image = image.copy()  # it may be a view, or belong to the user
        for y, x, height, width in (map(int, rectangle) for rectangle in wiped):
            image[y : y + height, x : x + width] = _level(step.fill, image, op="Erase")
        return image

    return do


def _level(fill: float, image: Image, *, op: str) -> int:
    """Return `fill` in the image's dtype."""
    level = round(fill)
    if level > MAX_LEVEL[image.dtype.name]:
        raise SpecError(
            f"{op}(fill={fill:g}): the image is {image.dtype}: must be 0 to "
            f"{MAX_LEVEL[image.dtype.name]}"
        )
    return level


StepFactory: TypeAlias = Callable[..., "StepFunction | None"]
GEOMETRY_STEPS: dict[type, StepFactory] = {
    RandomWindow: _window,
    FixedWindow: _fixed,
    Scale: _scale,
    Mirror: _mirror,
    Warp: _warp,
}
VALUE_STEPS: dict[type, StepFactory] = {Colour: _colour, Blur: _blur, Cutout: _cutout}
