"""Records by index from arrays of one length, in memory and in files."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from numbers import Number
from typing import Any

import numpy as np

from fastfeed.core.collate import Allocate
from fastfeed.core.leaves import EXACT_INTEGERS, array_of
from fastfeed.core.structure import NOTHING, Container, Structure, paths_of, rebuild
from fastfeed.errors import OptionError, SpecError
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
    """The rows of columns as records in the structure of the columns.

    Columns in memory are numpy arrays of shape (records, ...), or sequences of what is no number.
    Arrays in files (h5py, zarr) are read when a record is. Raise OptionError for columns of unequal
    or no length, or on an accelerator.
    """

    def __init__(self, structure: Structure, leaves: Sequence[Any]) -> None:
        self._structure = structure
        paths = paths_of(structure, "source")
        pairs = zip(leaves, paths, strict=True)
        self.columns = [_read_only(_column(leaf, path)) for leaf, path in pairs]
        # A function gets the numbers of a list as they were: an int, not numpy's int64.
        lists = [isinstance(leaf, (list, tuple, range)) for leaf in leaves]
        self._listed = [n for n, c in enumerate(self.columns) if lists[n] and _is_array(c)]
        self._length = _common_length(self.columns, paths)
        # Text, objects and records of varying shape are collated one by one.
        regular = all(_is_array(c) and c.dtype.kind in "biufc" for c in self.columns)
        self._reader = ColumnReader(structure, self.columns) if regular else None

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        row = [column[index] for column in self.columns]
        for n in self._listed:
            row[n] = row[n].tolist()
        return rebuild(self._structure, row)

    def gather(self, indices: Sequence[int], allocate: Allocate) -> Any:
        """Return the records at these indices as one batch in memory from `allocate`, or None for
        records that are no numbers."""
        return self._reader.gather(indices, allocate) if self._reader is not None else None


def arrays_from(given: Any, options: FeedOptions) -> Any:
    """Return the records of columns, and any other source as it is.

    A tuple or a mapping whose leaves are sequences is a structure of columns, unless records=False
    says that its items are batches; so is one array, or a table of pandas, polars or pyarrow. A
    list is a sequence of records. Raise OptionError for a tuple that may be either.
    """
    leaves: list[Any] = []
    tuples: list[Any] = []
    if options.records is False or (isinstance(given, np.ndarray) and given.dtype.kind == "O"):
        return given
    structure = _structure(given, leaves, tuples=tuples)
    if not all(map(_is_column, leaves or [None])) or (structure is None and not _is_array(given)):
        return given
    lengths = set(map(_length, leaves))
    records = type(given) is tuple and _are_alike(given)
    records = records and all(isinstance(item, (tuple, Mapping)) for item in given)
    even = len(lengths) == 1 and all(_are_alike(t) for t in leaves if isinstance(t, tuple))
    if records and not even:
        return given
    if records or any({len(t)} == lengths and _are_alike(t) for t in tuples if t is not given):
        raise OptionError(
            "the source can be read in two ways: a tuple is a sequence of records or a structure "
            "of columns. Make each tuple of records or batches a list, such as list(source), and "
            "each tuple of columns a dict, such as {'x': x, 'y': y}"
        )
    return Arrays(structure, leaves)


def _structure(node: Any, leaves: list[Any], *, tuples: list[Any]) -> Structure:
    """Return the containers of `node`. Add its leaves to `leaves`, plain tuples to `tuples`."""
    fields = _fields_of(node)
    if fields is not None:
        node = {str(name): _column_of(node, name) for name in fields}
    if isinstance(node, Mapping):
        kind: Any = OrderedDict if type(node) is OrderedDict else dict
        keys, parts = tuple(node), tuple(node.values())
    elif isinstance(node, tuple) and (
        type(node) is not tuple or all(part is None or _is_column(part) for part in node)
    ):
        kind, keys, parts = type(node), getattr(node, "_fields", tuple(range(len(node)))), node
        tuples += [node] if type(node) is tuple else []
    else:
        leaves.append(node)
        return None
    children = [NOTHING if p is None else _structure(p, leaves, tuples=tuples) for p in parts]
    return Container(kind, keys, tuple(children))


def _column_of(table: Any, name: Any) -> Any:
    """Return a column of a table, or a field."""
    column = table[name]
    array = np.asanyarray(column)
    _refuse_changed(column, array, where=f"column {name!r}")
    return array


def _refuse_changed(column: Any, array: Any, *, where: str) -> None:
    """Raise OptionError for a column that is another one as an array: integers that have become
    floats, as missing values make them, if floats cannot hold them, and missing categories."""
    kind = str(getattr(column, "dtype", getattr(column, "type", ""))).lower()
    if kind.startswith("dictionary") and bool(getattr(column, "null_count", False)):
        raise OptionError(
            f"{where} is dictionary-encoded and has missing values, which numpy takes for "
            "the last category: fill them, or leave out these rows"
        )
    if array.dtype.kind == "f" and kind.startswith(("int", "uint")):
        largest = np.nanmax(np.abs(array), initial=0.0)
        if largest >= EXACT_INTEGERS:
            raise OptionError(
                f"{where} holds integers beyond 2**53 and missing values, which would make "
                "all of them floats, and round them: fill the missing values, or leave out these "
                "rows"
            )


def _fields_of(given: Any) -> Sequence[Any] | None:
    """Return the names of the columns of a table, and of the fields of a structured array."""
    names: Any = getattr(getattr(given, "schema", None), "names", None)  # of pyarrow
    if isinstance(given, np.ndarray):
        return given.dtype.names  # type: ignore[no-any-return]
    if not isinstance(names, list) and hasattr(given, "to_numpy"):
        names = list(getattr(given, "columns", ()))
    if not names or not hasattr(given, "columns"):
        return None
    if len(set(map(str, names))) < len(names):
        raise OptionError(f"the columns of a table need names that differ, got {names}")
    return list(names)


def _are_alike(items: Iterable[Any]) -> bool:
    return len(set(map(_kind, items))) <= 1


def _kind(item: Any) -> Any:
    if isinstance(item, (tuple, Mapping)):
        keys = item if isinstance(item, Mapping) else range(len(item))
        return tuple((key, _kind(item[key])) for key in keys)
    if _is_array(item):
        return len(item.shape), str(item.dtype)
    return Number if isinstance(item, (Number, np.bool_)) else type(item)


def _is_array(leaf: Any) -> bool:
    held = hasattr(leaf, "shape") and hasattr(leaf, "dtype") and hasattr(leaf, "__getitem__")
    return held and not isinstance(leaf, np.generic)


def _is_column(leaf: Any) -> bool:
    listed = isinstance(leaf, (Sequence, Mapping)) and not isinstance(leaf, (str, bytes, bytearray))
    return listed or _is_array(leaf) or hasattr(leaf, "to_numpy") or hasattr(leaf, "columns")


def _length(leaf: Any) -> int | None:
    shape = getattr(leaf, "shape", None)
    return len(leaf) if shape is None else int(shape[0]) if shape else None


def _column(leaf: Any, path: str) -> Any:
    """Return a leaf as a numpy array, or itself if it lies in a file or holds no numbers."""
    if _on_device(leaf):
        raise OptionError(
            f"{path} is a {type(leaf).__name__} on an accelerator: records are read on the host. "
            "Copy it once: x.cpu().numpy() (torch), np.asarray(x) (JAX), x.get() (CuPy)"
        )
    if _is_array(leaf) and hasattr(leaf, "chunks"):
        return in_file(leaf)
    if not hasattr(leaf, "shape") and not hasattr(leaf, "to_numpy"):
        return _numbers(leaf)
    if isinstance(leaf, np.memmap):
        return leaf
    found = array_of(leaf, path)
    if hasattr(leaf, "to_numpy"):
        _refuse_changed(leaf, found, where=path)
    return found


def _read_only(column: Any) -> Any:
    """Return an array that a transform of its rows cannot change, as those that workers map: the
    next epoch would get what it has made of them."""
    if not isinstance(column, np.ndarray):
        return column
    found = column.view()
    found.flags.writeable = False
    return found


def _numbers(items: Sequence[Any]) -> Any:
    """Return a list of numbers of one type, or of floats and integers, or of rows, as an array."""
    flat: list[Any] = list(items) if isinstance(items, (list, tuple, range)) else [None]
    while flat and set(map(type, flat)) == {list}:
        flat = list(chain.from_iterable(flat))
    kinds = set(map(type, flat))
    try:
        array = array_of(items if kinds <= {bool, int, float, complex} else None, "")
    except SpecError:  # rows of several lengths, or integers that no float can be
        return items
    same = set(map(type, array.ravel()[:1].tolist())) in (kinds, kinds - {int})
    return array if same and array.dtype.kind != "O" else items


def _on_device(leaf: Any) -> bool:
    device = getattr(leaf, "__dlpack_device__", None)
    try:
        return device is not None and int(device()[0]) not in HOST_DEVICES
    except Exception:  # a tensor that cannot say where it is
        return False


def _common_length(columns: Sequence[Any], paths: Sequence[str]) -> int:
    lengths = list(map(_length, columns))
    for length, path in zip(lengths, paths, strict=True):
        if length is None:
            raise OptionError(f"{path} is a scalar: every array needs one row for each record")
        if length != lengths[0]:
            raise OptionError(
                "the columns must have one length, which is the number of records: "
                f"{paths[0]} has {lengths[0]}, {path} has {length}. If these are the records or "
                "batches themselves, pass a list; a list among columns is one column"
            )
    if not lengths[0]:
        raise OptionError("the source is empty: it must have at least one record, its len() is 0")
    return lengths[0]


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
