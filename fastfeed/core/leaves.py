"""Leaves as arrays of the same values: lists, tensors, and what numpy alone would change."""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from fastfeed.errors import SpecError

Array = np.ndarray[Any, Any]
SEQUENCES = (np.generic, Sequence, ctypes.Array)  # numpy reads these as their items
EXACT_INTEGERS = 2**53  # every smaller integer is exact in float64
SPARSE_WAYS = ("toarray", "to_tensor", "todense")  # of SciPy, of TensorFlow, and of other packages


def array_of(value: Any, where: str) -> Array:
    """Return a leaf as an array of the same values. An array of shape () stays one.

    Raise SpecError, which names `where` and a solution, for what an array cannot hold.
    """
    if type(value) is np.ndarray:
        return value
    if isinstance(value, (bool, int, float, complex, np.generic)):
        return np.asarray(value)
    refuse_masked(value, where)
    torch = sys.modules.get("torch")
    if isinstance(value, getattr(torch, "Tensor", ())):
        return _of_tensor(value, where, torch=torch)
    if hasattr(value, "__getitem__") and not isinstance(value, SEQUENCES):
        _refuse_containers(value, where)
    try:
        array = np.asanyarray(value)
    except Exception as error:  # of the class of the leaf
        if type(value).__module__.startswith("tensorflow") and hasattr(value, "numpy"):
            return np.asarray(value.numpy())  # a scalar of bfloat16, which is no array there
        refuse_sparse(value, where)
        kind = "a ragged list" if isinstance(value, (list, tuple)) else type(value).__name__
        raise SpecError(
            f"{where} is {kind}, not an array ({error}): pad it, or yield single records with "
            "records=True, batch_size=32, pad=True"
        ) from error
    refuse_masked(array, where)
    array = np.asarray(array)
    if array.dtype.kind == "O" and not array.ndim:
        refuse_sparse(value, where)
    return array if hasattr(value, "dtype") else _exact(array, value, where=where)


def _refuse_containers(value: Any, where: str) -> None:
    """Raise SpecError for what numpy would iterate over, such as a graph: its keys are no data."""
    refuse_sparse(value, where)
    if not any(hasattr(value, f"__array{kind}__") for kind in ("", "_interface", "_struct")):
        raise SpecError(
            f"{where} is a {type(value).__name__}, which is no array: make arrays of it in "
            "transform= or collate=, such as the edges and features of a graph"
        )


def refuse_masked(value: Any, where: str) -> None:
    """Raise SpecError for an array with masked values, which would count as data."""
    masked = int(np.sum(np.ma.getmaskarray(value))) if isinstance(value, np.ma.MaskedArray) else 0
    if masked:
        raise SpecError(
            f"{where} has {masked} masked values, and the mask would be lost: replace them with "
            "x.filled(value), or yield the data and the mask as two leaves"
        )


def refuse_sparse(value: Any, where: str) -> None:
    """Raise SpecError for a matrix that stores only some of its values."""
    way = next((name for name in SPARSE_WAYS if hasattr(value, name)), None)
    if way is not None:
        raise SpecError(
            f"{where} is a {type(value).__name__}, which is no array: make it dense in the "
            f"producers, with x.{way}()"
        )


def _exact(array: Array, value: Any, *, where: str) -> Array:
    """Return an array of Python objects as it is, if numpy has changed none of them.

    Its text and bytes have no zeros at the end: they become objects. Raise SpecError for integers
    that became other floats.
    """
    if array.dtype.kind == "U":
        return np.asarray(value, object)
    if array.dtype.kind == "S":
        objects: Array = np.asarray(value, object)
        return objects if any(data[-1:] == b"\0" for data in objects.flat) else array
    if array.dtype.kind == "f" and (np.abs(array) >= EXACT_INTEGERS).any():
        for given in np.asarray(value, object).flat:
            if isinstance(given, (int, np.integer)) and int(float(given)) != int(given):
                raise SpecError(
                    f"{where} holds the integer {given} beside values that make it a float, which "
                    "would change it: yield an array of one dtype, such as np.array(x, np.uint64)"
                )
    return array


def _of_tensor(tensor: Any, where: str, *, torch: Any) -> Array:
    """Return the values of a tensor of PyTorch, in its memory if they are there."""
    ways = {
        "yield its parts as records, x.unbind(), with pad=True": tensor.is_nested,
        "use x.to_dense()": tensor.layout is not torch.strided,
        "use x.dequantize() or x.int_repr()": tensor.is_quantized,
        "use x.cpu()": tensor.device.type != "cpu",
    }
    if any(ways.values()):
        _refuse_tensor(tensor, where, way=next(way for way, needed in ways.items() if needed))
    plain = tensor.detach().resolve_conj().resolve_neg()
    name = str(plain.dtype).removeprefix("torch.")
    if not name.startswith(("bfloat16", "float8")):
        try:
            return np.asarray(plain)
        except Exception as error:
            text = str(error)
        _refuse_tensor(tensor, where, way=f"use another dtype, as with x.to(...) ({text})")
    try:
        dtype = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    except (ImportError, AttributeError):
        _refuse_tensor(tensor, where, way="install ml_dtypes, which brings it, or use x.float()")
    bits = torch.uint8 if dtype.itemsize == 1 else torch.int16
    found: Array = plain.view(bits).numpy().view(dtype)
    return found


def _refuse_tensor(tensor: Any, where: str, *, way: str) -> NoReturn:
    what = f"{tensor.dtype}, {tensor.layout}, on {tensor.device}"
    raise SpecError(
        f"{where} is a {type(tensor).__name__} ({what}), which no array of numpy can hold: {way}"
    )
