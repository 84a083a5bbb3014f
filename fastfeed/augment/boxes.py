"""Boxes that move with their image: float32 arrays of shape (n, 4), each row left, top, right,
bottom in pixels.

A box is clipped at the sides of its image. A box outside becomes a row of zeros, so that the boxes
still fit the other leaves of the record, such as classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastfeed.augment.operations import (
    Affine,
    Crop,
    Flip,
    Operation,
    RandomResizedCrop,
    Resize,
    Size,
)
from fastfeed.augment.spec import Augment
from fastfeed.errors import SpecError

Boxes = np.ndarray[Any, np.dtype[np.float32]]
CORNERS = [0, 1, 2, 1, 0, 3, 2, 3]  # x and y of each, among left, top, right, bottom


def transform_boxes(boxes: Any, spec: Augment, *, row: Sequence[float], size: Size) -> Boxes:
    """Return the boxes of an image of `size` (height, width) after the plan `row`: the upright ones
    around the moved ones. Raise SpecError for anything but boxes."""
    at = _clipped(_checked(boxes), size)
    for op, numbers in spec.program:
        move = _movement(op, row[numbers], size=size)
        if move is None:
            continue
        matrix, size = np.array(move[0], np.float64).reshape(2, 3), move[1]
        corners = at[:, CORNERS].reshape(-1, 4, 2) @ matrix[:, :2].T + matrix[:, 2]
        moved = np.concatenate([corners.min(1), corners.max(1)], 1)
        at = _clipped(moved * _has_area(at), size)
    result: Boxes = at.astype(np.float32)
    result *= _has_area(result)  # rounding to float32 may leave no area
    return result


def _checked(boxes: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    try:
        result = np.array(boxes, np.float64)
    except (TypeError, ValueError):
        result = np.empty(())
    if not result.size and result.ndim <= 2:
        result = result.reshape(0, 4)
    if result.ndim != 2 or result.shape[1] != 4 or not np.isfinite(result).all():
        shown = f"of shape {boxes.shape}" if isinstance(boxes, np.ndarray) else repr(boxes)
        raise SpecError(
            f"Augment(boxes=...): a record's boxes are {shown}: must be finite numbers of shape "
            "(n, 4), each row left, top, right, bottom in pixels"
        )
    return result


def _movement(
    op: Operation, numbers: Sequence[float], *, size: Size
) -> tuple[Sequence[float], Any] | None:
    """Return how `op` moves places, as a 2 x 3 matrix, row by row, and the size of its result; None
    if nothing moves."""
    high, wide = size
    if isinstance(op, (Crop, RandomResizedCrop)):
        y, x, height, width = numbers
        new: Any = op.size
        down, along = new[0] / height, new[1] / width
        return (along, 0, -x * along, 0, down, -y * down), new
    if isinstance(op, Resize):
        return (numbers[1] / wide, 0, 0, 0, numbers[0] / high, 0), numbers
    if isinstance(op, Flip):
        across, over = numbers
        x_part = (-1, 0, wide) if across else (1, 0, 0)
        return (*x_part, *((0, -1, high) if over else (0, 1, 0))), size
    if isinstance(op, Affine):
        back = np.array((*numbers, 0, 0, 1)).reshape(3, 3)
        return np.linalg.inv(back)[:2].ravel().tolist(), size
    return None


def _has_area(boxes: Any) -> Any:
    return ((boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1]))[:, None]


def _clipped(boxes: Any, size: Size) -> Any:
    """Return boxes clipped at the image; zeros for those outside."""
    high, wide = size
    clipped = np.clip(boxes, 0, (wide, high, wide, high))
    return clipped * _has_area(clipped)
