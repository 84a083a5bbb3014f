"""Dtypes that can be fed: numbers, bools, bytes and text."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastfeed.errors import SpecError

# Stands for bytes of any length: arrays of dtype S, and object arrays that hold only bytes. Text
# travels as its UTF-8 bytes.
BYTES = np.dtype("S")
TEXT = np.dtype("U")


def check_dtype(array: np.ndarray[Any, Any], where: str) -> np.ndarray[Any, Any]:
    """Return `array` in native byte order; raise SpecError if its dtype cannot be fed."""
    kind = array.dtype.kind
    if kind in "biufcS" or (kind == "V" and array.dtype.type.__module__.startswith("ml_dtypes")):
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    if kind == "U":
        return array
    if kind == "O":
        kinds = {str if issubclass(t, str) else t for t in set(map(type, array.flat))}
        if kinds <= {bytes} or kinds == {str}:
            return array
        inside = " and ".join(sorted(t.__name__ for t in kinds - {bytes})) or "bytes"
        raise SpecError(
            f"{where} is an object array that holds {inside}: expected numbers, bools, bytes or "
            "text. For records of varying shape, yield single records with records=True, "
            "batch_size=32, pad=True"
        )
    raise SpecError(f"{where} has dtype {array.dtype}: expected numbers, bools, bytes or text")


def produced_dtype(array: np.ndarray[Any, Any]) -> np.dtype[Any]:
    """Return the dtype of an array in native byte order; BYTES or TEXT for these, of any length."""
    if array.dtype.kind == "U" or (array.size and isinstance(array.flat[0], str)):
        return TEXT
    return BYTES if array.dtype.kind in "SO" else array.dtype.newbyteorder("=")


def encoded(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return text as an object array of its UTF-8 bytes."""
    out = np.empty(array.shape, object)
    out.flat[:] = [text.encode() for text in array.flat]
    return out


def decoded(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return UTF-8 bytes as an array of text."""
    return np.array([data.decode() for data in array.flat], str).reshape(array.shape)
