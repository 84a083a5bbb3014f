"""Boxes that move with their image: float32 arrays of shape (n, 4), each row left, top, right,
bottom in pixels.

A box is clipped at the sides of its image. A box outside becomes a row of zeros, so that the boxes
still fit the other leaves of the record, such as classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastfeed.augment.spec import Augment
from fastfeed.augment.steps import (
    IDENTITY_WARP,
    FixedWindow,
    Mirror,
    ProgramStep,
    RandomWindow,
    Scale,
    Size,
    Warp,
)
from fastfeed.errors import SpecError

Boxes = np.ndarray[Any, np.dtype[np.float32]]


def transform_boxes(boxes: Any, spec: Augment, *, row: Sequence[float], size: Size) -> Boxes:
    """Return the boxes of an image of `size` (height, width) after the plan `row`. Raise SpecError
    for anything but boxes."""
    at = _clipped(_checked(boxes), size)
    for placed in spec.program:
        at, size = _apply_step(at, placed.step, numbers=row[placed.numbers], size=size)
    result: Boxes = at.astype(np.float32)
    # rounding to float32 may leave no area
    result[(result[:, 2] <= result[:, 0]) | (result[:, 3] <= result[:, 1])] = 0
    return result


def _checked(boxes: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    try:
        result = np.array(boxes, np.float64)
    except (TypeError, ValueError):
        result = np.empty(())
    if not result.size and result.ndim <= 2:
        result = result.reshape(0, 4)
    if result.ndim != 2 or result.shape[1] != 4 or not np.isfinite(result).all():
        raise SpecError(
            f"Augment(boxes=...): a record's boxes are {_shown(boxes)}: must be numbers of shape "
            "(n, 4), each row left, top, right, bottom in pixels"
        )
    return result


def _shown(boxes: Any) -> str:
    return (
        f"an array of shape {boxes.shape} and dtype {boxes.dtype}"
        if isinstance(boxes, np.ndarray)
        else repr(boxes)
    )


def _apply_step(
    boxes: Any, step: ProgramStep, *, numbers: Sequence[float], size: Size
) -> tuple[Any, Size]:
    high, wide = size
    if isinstance(step, (RandomWindow, FixedWindow)):
        y, x, height, width = numbers
        # boxes end within the image, so clipping them at the window is enough
        size = (int(height), int(width))
        return _clipped(boxes - (x, y, x, y), size), size
    if isinstance(step, Scale):
        size = (int(numbers[0]), int(numbers[1]))
        return boxes * (size[1] / wide, size[0] / high, size[1] / wide, size[0] / high), size
    if isinstance(step, Mirror):
        horizontal, vertical = numbers
        left, top, right, bottom = boxes.T
        kept = _has_area(boxes)
        if horizontal:
            left, right = wide - right, wide - left
        if vertical:
            top, bottom = high - bottom, high - top
        return np.stack([left, top, right, bottom], 1) * kept, size
    if isinstance(step, Warp):
        return _clipped(_warped(boxes, numbers), size), size
    return boxes, size


def _warped(boxes: Any, numbers: Sequence[float]) -> Any:
    """Return the upright boxes around the turned ones."""
    if tuple(numbers) == IDENTITY_WARP:
        return boxes
    kept = _has_area(boxes)
    back = np.array(numbers, np.float64).reshape(2, 3)
    forward = np.linalg.inv(back[:, :2])
    corners = boxes[:, [0, 1, 2, 1, 0, 3, 2, 3]].reshape(-1, 4, 2)
    there = (corners - back[:, 2]) @ forward.T
    return np.concatenate([there.min(1), there.max(1)], 1) * kept


def _has_area(boxes: Any) -> Any:
    return ((boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1]))[:, None]


def _clipped(boxes: Any, size: Size) -> Any:
    """Return boxes clipped at the image; zeros for those outside."""
    high, wide = size
    clipped = np.clip(boxes, 0, (wide, high, wide, high))
    return clipped * _has_area(clipped)
