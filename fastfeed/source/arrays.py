"""Records by index from arrays of one length, in memory and in files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastfeed.core.collate import Allocate
from fastfeed.core.leaves import refuse_masked
from fastfeed.core.structure import Structure, leaves_of, paths_of, rebuild, structure_of
from fastfeed.errors import OptionError
from fastfeed.options import FeedOptions
from fastfeed.source.hdf5 import in_file

Array = np.ndarray[Any, Any]
HOST_DEVICES = (1, 3)  # of DLPack: the CPU, and memory pinned by CUDA


class ColumnReader:
    """Gathers rows of arrays of numbers, of shape (records, ...), in a structure."""

    def __init__(self, structure: Structure, columns: Sequence[Any]) -> None:
        self._structure, self._columns = structure, columns
        # shape and dtype of one record
        self._rows = [
            (tuple(column.shape[1:]), column.dtype.newbyteorder("=")) for column in columns
        ]

    def gather(self, indices: Sequence[int] | Array, allocate: Allocate) -> Any:
        """Return the rows at these indices as one batch in memory from `allocate`."""
        rows = np.asarray(indices)
        found = list(allocate([((len(rows), *shape), dtype) for shape, dtype in self._rows]))
        for column, out in zip(self._columns, found, strict=True):
            _gather(column, rows, out=out)
        return rebuild(self._structure, found)


class Arrays:
    """The rows of arrays as records in the structure of the arrays.

    Arrays in memory are numpy arrays of shape (records, ...). Arrays in files (h5py, zarr) are read
    when a record is. Raise OptionError for arrays of unequal or no length, and for those that are
    not on the host.
    """

    def __init__(self, given: Any, options: FeedOptions) -> None:
        self._structure = structure_of(given)
        paths = paths_of(self._structure, "source")
        leaves = leaves_of(self._structure, given) or []
        self.columns = [_column(leaf, path) for leaf, path in zip(leaves, paths, strict=True)]
        self._length = _common_length(self.columns, paths)
        for column, path in zip(self.columns, paths, strict=True):
            _refuse_objects(column, path, padded=options.padded)
        self._reader = ColumnReader(self._structure, self.columns)
        # Text and records of varying shape are collated one by one.
        self._regular = all(column.dtype.kind in "biufc" for column in self.columns)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return rebuild(self._structure, [column[index] for column in self.columns])

    def gather(self, indices: Sequence[int], allocate: Allocate) -> Any:
        """Return the records at these indices as one batch in memory from `allocate`, or None for
        records that are no numbers."""
        return self._reader.gather(indices, allocate) if self._regular else None


def arrays_from(given: Any, options: FeedOptions) -> Any:
    """Return the records of a structure of arrays, and any other source as it is.

    A tuple, a mapping or one array is such a structure if its leaves are arrays, and records=False
    does not say that its items are batches. A table of pandas or polars is a mapping of its
    columns. A list is a sequence of records.
    """
    if options.records is False:
        return given
    given = tuple(map(_columns_of, given)) if type(given) is tuple else _columns_of(given)
    if not (isinstance(given, (tuple, Mapping)) or _is_array(given)):
        return given
    if isinstance(given, np.ndarray) and given.dtype.names:
        given = {name: given[name] for name in given.dtype.names}
    if isinstance(given, np.ndarray) and given.dtype.kind == "O":
        return given
    leaves = leaves_of(structure_of(given), given) or []
    if not any(map(_is_array, leaves)) or not all(
        _is_array(leaf) or _is_list(leaf) for leaf in leaves
    ):
        return given
    return Arrays(given, options)


def _columns_of(given: Any) -> Any:
    """Return the columns of a table by their names, and anything else as it is."""
    if not (hasattr(given, "to_numpy") and hasattr(given, "columns")):
        return given
    return {str(name): given[name].to_numpy() for name in given.columns}


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype") and hasattr(leaf, "__getitem__")


def _is_list(leaf: Any) -> bool:
    return isinstance(leaf, (list, range))


def _column(leaf: Any, path: str) -> Any:
    """Return a leaf as a numpy array, or itself if it lies in a file."""
    if _on_device(leaf):
        raise OptionError(
            f"{path} is a {type(leaf).__name__} on an accelerator: records are read on the host. "
            "Copy it once: x.cpu().numpy() (torch), np.asarray(x) (JAX), x.get() (CuPy)"
        )
    if hasattr(leaf, "chunks"):
        return in_file(leaf)
    refuse_masked(leaf, path)
    try:
        return np.asanyarray(leaf)
    except Exception as error:  # a tensor that needs a gradient, or has a dtype of its own
        raise OptionError(f"{path} is no array for numpy: {error}") from error


def _on_device(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray):
        return False
    device = getattr(leaf, "__dlpack_device__", None)
    if callable(device):
        try:
            return int(device()[0]) not in HOST_DEVICES
        except Exception:  # a tensor that cannot say where it is
            return False
    return hasattr(leaf, "__cuda_array_interface__")


def _common_length(columns: Sequence[Any], paths: Sequence[str]) -> int:
    for column, path in zip(columns, paths, strict=True):
        if not column.shape:
            raise OptionError(f"{path} is a scalar: every array needs one row for each record")
    lengths = [int(column.shape[0]) for column in columns]
    if len(set(lengths)) > 1:
        pairs = ", ".join(f"{p} has {n}" for p, n in zip(paths, lengths, strict=True))
        raise OptionError(
            f"the arrays must have one length, which is the number of records: {pairs}. If these "
            "are the records or batches themselves, pass a list"
        )
    if not lengths[0]:
        raise OptionError("the source is empty: it must have at least one record, its len() is 0")
    return lengths[0]


def _refuse_objects(column: Any, path: str, *, padded: bool) -> None:
    """Raise OptionError for objects that make no batch."""
    if column.dtype.kind != "O" or not isinstance(column, np.ndarray):
        return
    kinds = {str if issubclass(t, str) else t for t in set(map(type, column.flat))}
    if len(kinds) == 1 and kinds <= {str, bytes}:
        return
    if padded and all(issubclass(t, (np.ndarray, list)) for t in kinds):
        return
    names = ", ".join(sorted(t.__name__ for t in kinds))
    raise OptionError(
        f"{path} is an object array that holds {names}: pass numbers, bools, bytes or text. Arrays "
        "of varying shape need pad=True (zeros) or pad=<number>"
    )


def _gather(column: Any, rows: Array, *, out: Array) -> None:
    first, count = int(rows[0]), len(rows)
    if rows[-1] - first == count - 1 and (rows[1:] - rows[:-1] == 1).all():
        out[...] = column[first : first + count]
    elif not isinstance(column, np.ndarray):
        # In rising order: neighbours lie in one chunk of the file.
        for place in np.argsort(rows, kind="stable").tolist():
            out[place] = column[int(rows[place])]
    elif column.dtype == out.dtype:
        # With the default mode numpy copies twice.
        column.take(rows, 0, out, "clip")
    else:
        out[...] = column[rows]
