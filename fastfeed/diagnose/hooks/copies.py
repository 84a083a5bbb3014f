"""Copies of batches whose memory their producer may reuse."""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

CONSTANT = (int, float, complex, bool, str, bytes, type(None))
FROZEN = ("EagerTensor", "ArrayImpl")  # of TensorFlow and JAX: their values never change


class NotCopyable(Exception):
    """Something mutable that cannot be copied; the text is its type."""


def copied(batch: Any) -> Any:
    """Return the batch in memory of its own. Raise NotCopyable."""
    kind = type(batch)
    if kind in (tuple, list):
        return kind(copied(part) for part in batch)
    if isinstance(batch, tuple) and hasattr(batch, "_make"):
        return kind._make(copied(part) for part in batch)
    if kind in (dict, OrderedDict):
        return kind((key, copied(part)) for key, part in batch.items())
    if kind is _array() and not batch.dtype.hasobject:
        return batch.copy(order="K")
    if kind is _tensor():
        return batch.detach().clone()
    if isinstance(batch, (*CONSTANT, _known("numpy", "generic"))) or kind.__name__ in FROZEN:
        return batch
    raise NotCopyable(kind.__name__)


def addresses(batch: Any) -> set[int]:
    """Return the addresses of its arrays."""
    return {_address(leaf) for leaf in _arrays(batch)} - {0}


def nbytes_of(batch: Any) -> int:
    """Return the bytes of its arrays."""
    return sum(int(leaf.nbytes) for leaf in _arrays(batch))


def nbytes_of_spec(spec: Any) -> int:
    """Return the bytes of an element of tf.data, as far as its shapes are known: an unknown
    dimension counts as 1."""
    total = 0
    for one in sys.modules["tensorflow"].nest.flatten(spec):
        shape = getattr(one, "shape", None)
        sizes = (
            [] if shape is None or shape.rank is None else [size or 1 for size in shape.as_list()]
        )
        total += math.prod(sizes) * int(getattr(getattr(one, "dtype", None), "size", 0))
    return total


def _arrays(batch: Any) -> Iterator[Any]:
    if isinstance(batch, (tuple, list)):
        for part in batch:
            yield from _arrays(part)
    elif isinstance(batch, dict):
        for part in batch.values():
            yield from _arrays(part)
    elif type(batch) in (_array(), _tensor()):
        yield batch


def _address(leaf: Any) -> int:
    where = leaf.ctypes.data if isinstance(leaf, _array()) else leaf.data_ptr()
    return int(where) if leaf.nbytes else 0


def _array() -> Any:
    return _known("numpy", "ndarray")


def _tensor() -> Any:
    return _known("torch", "Tensor")


def _known(module: str, name: str) -> Any:
    """Return a class of a module that the script has imported; importing is left to the script,
    which may first set how many threads its libraries use."""
    return getattr(sys.modules.get(module), name, NotCopyable)
