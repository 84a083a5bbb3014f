"""One-hot rows of labels, and mixup over a collated batch. Imports no framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastfeed.augment.values import OneHot
from fastfeed.errors import SpecError


def one_hot(label: Any, op: OneHot) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return a float32 row of shape (classes,) with the sum 1. Raise SpecError unless the label is
    the number of a class."""
    found = np.asarray(label)
    if found.dtype.kind not in "iu" or found.size != 1:
        kind = (
            f"an array of shape {found.shape} and dtype {found.dtype}"
            if found.ndim
            else repr(label)
        )
        raise SpecError(
            f"OneHot: the label of a record is {kind}: must be one integer, the number of its class"
        )
    number = int(found.reshape(-1)[0])
    if not 0 <= number < op.classes:
        raise SpecError(
            f"OneHot(classes={op.classes}): the label of a record is {number}: must be 0 to "
            f"{op.classes - 1}"
        )
    row = np.full(op.classes, op.smoothing / op.classes, np.float32)
    row[number] += 1 - op.smoothing
    return row


def mix(rows: np.ndarray[Any, Any], shares: Sequence[float], *, what: str) -> None:
    """Blend each row in place with the next one, and the last with the first. `shares` are those of
    the row itself.

    Raise SpecError for dtypes that cannot be blended; `what` is their name in the message.
    """
    if rows.dtype.kind != "f":
        hint = "OneHot(classes)" if what == "labels" else 'Normalize(...) or Cast("float32")'
        raise SpecError(
            f"Mixup blends floats, and the {what} are {rows.dtype}: put {hint} before it"
        )
    first = rows[0].copy()
    for at, share in enumerate(shares):
        if share < 1:
            row, following = rows[at], rows[at + 1] if at + 1 < len(rows) else first
            row *= share
            row += following * rows.dtype.type(1 - share)
