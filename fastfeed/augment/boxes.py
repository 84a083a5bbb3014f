"""Boxes that move with their image: float32 arrays of shape (n, 4), each row left, top, right,
bottom in pixels.

A box is cut at the sides of its image. One that lies outside keeps its row, with zeros, so that a
record has as many boxes as before and its other leaves (classes, for example) still belong to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastfeed.augment.spec import Augment
from fastfeed.augment.steps import FixedWindow, Mirror, ProgramStep, RandomWindow, Scale, Size, Warp
from fastfeed.errors import SpecError

Boxes = np.ndarray[Any, np.dtype[np.float32]]


def moved(boxes: Any, spec: Augment, *, row: Sequence[float], size: Size) -> Boxes:
    """Return the boxes of an image of `size` (height, width) after the plan `row`. Raise SpecError
    for something else."""
    at = _cut(_checked(boxes), size)
    for placed in spec.program:
        at, size = _step(at, placed.step, numbers=row[placed.numbers], size=size)
    found: Boxes = at.astype(np.float32)
    # in float32 there may be no area left
    found[(found[:, 2] <= found[:, 0]) | (found[:, 3] <= found[:, 1])] = 0
    return found


def _checked(boxes: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    try:
        found = np.array(boxes, np.float64)
    except (TypeError, ValueError):
        found = np.empty(())
    if not found.size and found.ndim <= 2:
        found = found.reshape(0, 4)
    if found.ndim != 2 or found.shape[1] != 4 or not np.isfinite(found).all():
        raise SpecError(
            f"Augment(boxes=...): a record's boxes are {_shown(boxes)}: must be numbers of shape "
            "(n, 4), each row left, top, right, bottom in pixels"
        )
    return found


def _shown(boxes: Any) -> str:
    return (
        f"an array of shape {boxes.shape} and dtype {boxes.dtype}"
        if isinstance(boxes, np.ndarray)
        else repr(boxes)
    )


def _step(
    boxes: Any, step: ProgramStep, *, numbers: Sequence[float], size: Size
) -> tuple[Any, Size]:
    high, wide = size
    if isinstance(step, (RandomWindow, FixedWindow)):
        y, x, height, width = numbers
        # a window adds no boxes around the image, and they end within it already
        size = (int(height), int(width))
        return _cut(boxes - (x, y, x, y), size), size
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
        return _cut(_warped(boxes, numbers), size), size
    return boxes, size


def _warped(boxes: Any, numbers: Sequence[float]) -> Any:
    """Return the upright boxes around the turned ones."""
    if tuple(numbers) == (1, 0, 0, 0, 1, 0):
        return boxes
    kept = _has_area(boxes)
    back = np.array(numbers, np.float64).reshape(2, 3)
    forward = np.linalg.inv(back[:, :2])
    corners = boxes[:, [0, 1, 2, 1, 0, 3, 2, 3]].reshape(-1, 4, 2)
    there = (corners - back[:, 2]) @ forward.T
    return np.concatenate([there.min(1), there.max(1)], 1) * kept


def _has_area(boxes: Any) -> Any:
    return ((boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1]))[:, None]


def _cut(boxes: Any, size: Size) -> Any:
    """Return boxes cut at the image; zeros for those outside."""
    high, wide = size
    cut = np.clip(boxes, 0, (wide, high, wide, high))
    return cut * _has_area(cut)
