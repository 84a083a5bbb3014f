"""Copies of batches whose memory their producer may reuse."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

IMMUTABLE = (int, float, complex, bool, str, bytes, type(None))
# names of types of TensorFlow and JAX whose values never change
IMMUTABLE_ARRAYS = ("EagerTensor", "ArrayImpl")


class NotCopyable(Exception):
    """A mutable object that cannot be copied; the text is the name of its type."""


def copied(batch: Any) -> Any:
    """Return the batch in memory of its own. Raise NotCopyable if a part cannot be copied."""
    kind = type(batch)
    if kind in (tuple, list):
        return kind(copied(part) for part in batch)
    if isinstance(batch, tuple) and hasattr(batch, "_make"):
        return kind._make(copied(part) for part in batch)
    if kind in (dict, OrderedDict):
        return kind((key, copied(part)) for key, part in batch.items())
    if kind is _array_type() and not batch.dtype.hasobject:
        return batch.copy(order="K")
    if kind is _tensor_type():
        return batch.detach().clone()
    immutable = (*IMMUTABLE, _imported_type("numpy", "generic"))
    if isinstance(batch, immutable) or kind.__name__ in IMMUTABLE_ARRAYS:
        return batch
    raise NotCopyable(kind.__name__)


def addresses(batch: Any) -> set[int]:
    """Return the addresses of the arrays of a batch."""
    return {_address(leaf) for leaf in _arrays(batch)} - {0}


def nbytes_of(batch: Any) -> int:
    """Return the number of bytes of the arrays of a batch."""
    return sum(int(leaf.nbytes) for leaf in _arrays(batch))


def _arrays(batch: Any) -> Iterator[Any]:
    if isinstance(batch, (tuple, list)):
        for part in batch:
            yield from _arrays(part)
    elif isinstance(batch, dict):
        for part in batch.values():
            yield from _arrays(part)
    elif type(batch) in (_array_type(), _tensor_type()):
        yield batch


def _address(leaf: Any) -> int:
    address = leaf.ctypes.data if isinstance(leaf, _array_type()) else leaf.data_ptr()
    return int(address) if leaf.nbytes else 0


def _array_type() -> Any:
    return _imported_type("numpy", "ndarray")


def _tensor_type() -> Any:
    return _imported_type("torch", "Tensor")


def _imported_type(module: str, name: str) -> Any:
    """Return a class of a module that the script has imported, else a class without instances.

    Importing is left to the script, which may first set how many threads its libraries use.
    """
    return getattr(sys.modules.get(module), name, NotCopyable)
