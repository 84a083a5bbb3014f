"""The steps of a program in OpenCV: functions of an image and its row of the plan.

Grey images have two axes, as in OpenCV; colours are red, green, blue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from fastfeed.augment.image_leaves import Image
from fastfeed.augment.opencv_resample import nearest, resample
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
