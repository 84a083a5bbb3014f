"""Samples of arrays that others may change: they are compared with what the arrays hold later."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

WHOLE_NBYTES = 1024  # of an array that is its own sample
RUN_NBYTES, RUNS = 64, 32  # of the sample of a larger one, at least
ELEMENTS = 256  # of one that does not lie in a row, or holds objects
REFERENCES = max(map(sys.getrefcount, (np.empty(1),)))  # to what only a list or a tuple holds


def sample_of(arrays: Sequence[np.ndarray[Any, Any]]) -> list[Any]:
    """Return what is equal to a sample of the same arrays as long as what was sampled is."""
    found: list[Any] = []
    for array in arrays:
        part = array if array.nbytes <= WHOLE_NBYTES else _part_of(array)
        # the address of an object may be that of another one later, if nothing holds the first
        found.append(part.tolist() if part.dtype.hasobject else part.tobytes())
    return found


def are_alone(arrays: Sequence[np.ndarray[Any, Any]]) -> bool:
    """Return True if nothing but this sequence refers to the arrays, or to their memory."""
    most = max(map(sys.getrefcount, arrays))
    return most <= REFERENCES and all(array.flags.owndata for array in arrays)


def _part_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return parts from all over a large array. Their distance is odd: in rows whose length is a
    power of two they begin everywhere."""
    if array.dtype.hasobject or not array.flags.c_contiguous:
        return array.flat[:: array.size // ELEMENTS | 1]
    raw = array.reshape(-1).view(np.uint8)
    runs = raw[: raw.size // RUN_NBYTES * RUN_NBYTES].view(f"V{RUN_NBYTES}")
    return runs[:: len(runs) // RUNS | 1]
