"""The steps of a loop, combined if there are too many to show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fastfeed.steps.timeline import Step


class Bin(NamedTuple):
    """`steps` consecutive steps; times in seconds since the origin, the rest in seconds of a step.

    `free`: how many of them belong to an experiment.
    """

    start_s: float
    end_s: float
    steps: int
    mean_s: float
    longest_s: float
    wait_s: float  # mean
    longest_wait_s: float
    free: int


def binned(steps: Sequence[Step], *, origin_s: float, limit: int) -> list[Bin]:
    """Return at most `limit` bins, of one step each if that is enough, else of equal time.

    A bin reaches from the begin of its first step to the end of its last one, so that a pause stays
    a gap.
    """
    table = np.array(steps, dtype=np.float64).reshape(-1, 4)
    table = table[np.isfinite(table).all(axis=1)]
    table = table[np.argsort(table[:, 1], kind="stable")]
    if not len(table):
        return []
    begin, end, free = table[:, 0] - origin_s, table[:, 1] - origin_s, table[:, 3]
    length = np.maximum(end - begin, 0.0)
    wait = np.clip(table[:, 2], 0.0, length)
    first = _firsts(end, limit)
    count = np.diff(np.append(first, len(end)))
    columns = (
        np.minimum.reduceat(begin, first),
        np.maximum.reduceat(end, first),
        count,
        np.add.reduceat(length, first) / count,
        np.maximum.reduceat(length, first),
        np.add.reduceat(wait, first) / count,
        np.maximum.reduceat(wait, first),
        np.add.reduceat(free, first).astype(np.int64),
    )
    return [Bin(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _firsts(end: np.ndarray, limit: int) -> np.ndarray:
    """Return which step is the first of each bin."""
    if len(end) <= limit:
        return np.arange(len(end))
    span = max(float(end[-1] - end[0]), 1e-9)
    place = np.minimum((end - end[0]) / span * limit, limit - 1).astype(np.int64)
    return np.flatnonzero(np.diff(place, prepend=-1))
