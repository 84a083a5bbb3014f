"""Dtypes that can be fed: numbers, bools, bytes and text."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from fastfeed.errors import SpecError

# Stands for bytes of any length: arrays of dtype S, and object arrays that hold only bytes. Text
# travels as its UTF-8 bytes.
BYTES = np.dtype("S")
TEXT = np.dtype("U")
# by the kind of a dtype that cannot be fed
DTYPE_WAYS = {
    "M": ". Use x.astype('int64'), which keeps the unit of the dtype",
    "m": ". Use x.astype('int64'), which keeps the unit of the dtype",
    "V": ". Use a dict of the fields, {name: x[name] for name in x.dtype.names}",
}


def check_dtype(array: np.ndarray[Any, Any], where: str) -> np.ndarray[Any, Any]:
    """Return `array` in native byte order; raise SpecError if its dtype cannot be fed."""
    kind = array.dtype.kind
    if kind in "biufcS" or (kind == "V" and array.dtype.type.__module__.startswith("ml_dtypes")):
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    if kind == "U":
        return array
    if kind == "T":  # StringDType
        array, kind = array.astype(object), "O"
    if kind == "O":
        kinds = {str if issubclass(t, str) else t for t in set(map(type, array.flat))}
        if kinds <= {bytes} or kinds == {str}:
            return array
        inside = " and ".join(sorted(t.__name__ for t in kinds - {bytes})) or "bytes"
        raise SpecError(
            f"{where} is an object array that holds {inside}: expected numbers, bools, bytes or "
            "text. Make these in the source or in transform=, as in float(x) or str(x). For "
            "records of varying shape, yield single records with records=True, batch_size=32, "
            "pad=True"
        )
    way = DTYPE_WAYS.get(kind, "")
    raise SpecError(f"{where} has dtype {array.dtype}: expected numbers, bools, bytes or text{way}")


def produced_dtype(array: np.ndarray[Any, Any]) -> np.dtype[Any]:
    """Return the dtype of an array in native byte order; BYTES or TEXT for these, of any length."""
    if array.dtype.kind == "U" or (array.size and isinstance(array.flat[0], str)):
        return TEXT
    return BYTES if array.dtype.kind in "SO" else array.dtype.newbyteorder("=")


def cast(array: np.ndarray[Any, Any], dtype: np.dtype[Any], *, where: str) -> np.ndarray[Any, Any]:
    """Return numbers in another dtype. Raise SpecError if integers or bools would have other
    values."""
    if not _is_integral(dtype):
        return array.astype(dtype)
    with np.errstate(invalid="ignore"):
        found = array.astype(dtype)
        # Both: float64 cannot tell large integers apart, and -1 comes back from uint64.
        same = (found == array) & (found.astype(array.dtype) == array)
    if not same.all():
        raise SpecError(
            f"{where} holds {array[~same].flat[0]}, which {dtype} would change: choose a dtype "
            "that can hold it in dtypes=, or round and clip in the source"
        )
    return found


def _is_integral(dtype: np.dtype[Any]) -> bool:
    """Return True for integers, also those of ml_dtypes, and for bools."""
    return dtype.kind in "biu" or (dtype.kind == "V" and "int" in dtype.name)


def encoded(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return text as an object array of its UTF-8 bytes.

    File names that are no UTF-8 (`os.fsdecode`) become their own bytes.
    """
    out = np.empty(array.shape, object)
    out.flat[:] = [_bytes_of(text) for text in array.flat]
    return out


def decoded(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return encoded bytes as an array of text: of objects if some end in zeros, which numpy's own
    text cannot hold."""
    texts = [_text_of(data) for data in array.flat]
    kind = object if any(text[-1:] == "\0" for text in texts) else str
    return np.array(texts, kind).reshape(array.shape)


def _bytes_of(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # lone surrogates
        with contextlib.suppress(UnicodeEncodeError):
            data = text.encode("utf-8", "surrogateescape")
            if _text_of(data) == text:
                return data
        return text.encode("utf-8", "surrogatepass")


def _text_of(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "surrogateescape")
