"""Batches and their spec: structure, dtypes and record shapes.

A spec is inferred from the first batch; every later batch is checked against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fastfeed.core.array_samples import are_alone, sample_of
from fastfeed.core.dtypes import (
    BYTES,
    TEXT,
    cast,
    check_dtype,
    decoded,
    encoded,
    produced_dtype,
)
from fastfeed.core.leaves import array_of
from fastfeed.core.structure import (
    Structure,
    describe,
    flatten_like,
    leaves_of,
    paths_of,
    placed,
    rebuild,
    structure_of,
)
from fastfeed.errors import OptionError, SpecError

Shape = tuple[int | None, ...]


@dataclass(slots=True)
class Batch:
    """Checked arrays with one leading dimension of `rows` records; they occupy `nbytes`."""

    leaves: tuple[np.ndarray[Any, Any], ...]
    rows: int
    nbytes: int
    # of what the source may change while the batch waits: its place for error texts, and a sample
    watched: tuple[str, list[Any]] | None = None

    def watch(self, place: str) -> None:
        """Take a sample: the arrays are not those of fastfeed."""
        self.watched = place, sample_of(self.leaves)

    def settle(self) -> None:
        """End the watch if nobody else can change the arrays any more. Raise SpecError if they
        have changed."""
        if self.watched is not None and are_alone(self.leaves):
            self.refuse_changed()
            self.watched = None

    def refuse_changed(self) -> None:
        """Raise SpecError if the arrays have changed since `watch`."""
        if self.watched is not None and self.watched[1] != sample_of(self.leaves):
            raise SpecError(
                f"{self.watched[0]} has changed while it waited: the source fills an array again "
                "that its batches are, or are views of, or shuffles it in place, as between two "
                "passes, or the loop changes it in place. Producer threads do not copy. Yield "
                "copies, such as array.copy(), or use processes= of one thread each, which copy"
            )


@dataclass(frozen=True, slots=True)
class LeafSpec:
    """Description of one leaf of a batch.

    `dtype` is the delivered dtype, `produced` the one that the producer yielded in the first batch.
    `shape` is the shape of one record; None stands for a dimension that varies. `cast` is True if
    the user requested a dtype.
    """

    path: str
    dtype: np.dtype[Any]
    shape: Shape
    produced: np.dtype[Any]
    cast: bool

    @property
    def text(self) -> bool:
        """True if the source yields `str`, which is delivered as `str` where the sink has it."""
        return self.produced == TEXT

    @property
    def name(self) -> str:
        """The dtype in words."""
        return _name(self.produced if self.text else self.dtype)

    @property
    def record_nbytes(self) -> int:
        """Bytes of one record; a varying dimension counts as 1, bytes count as a pointer."""
        return int(np.prod([d or 1 for d in self.shape])) * (
            8 if self.dtype == BYTES else self.dtype.itemsize
        )


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """Structure and leaves of every batch.

    `rows` is the leading dimension of the first batch. `ragged` is True if records are padded.
    `image` is the key that has told augment= the image of a record, or None.
    """

    structure: Structure
    leaves: tuple[LeafSpec, ...]
    rows: int
    ragged: bool = False
    image: Any = None
    _has_text: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_has_text", any(leaf.text for leaf in self.leaves))

    @property
    def record_nbytes(self) -> int:
        """Bytes of one record over all leaves."""
        return sum(leaf.record_nbytes for leaf in self.leaves)

    def check(self, batch: Any, place: str) -> Batch:
        """Return `batch` as arrays that conform to this spec.

        Raise SpecError, which names `place` and the leaf, if the batch does not conform.
        """
        values = leaves_of(self.structure, batch)
        if values is None:
            have = describe(structure_of(batch))
            raise SpecError(
                f"{place} has another structure than the first: expected "
                f"{describe(self.structure)}, got {have}. Yield the same containers and keys in "
                "every batch"
            )
        return self.check_leaves(values, place)

    def check_leaves(self, values: Sequence[Any], place: str) -> Batch:
        """Check leaves that are already out of their containers, as `check` does."""
        arrays = tuple(
            [self._fit(v, leaf, place=place) for v, leaf in zip(values, self.leaves, strict=True)]
        )
        return Batch(arrays, rows_of(arrays, self.leaves, place=place), sum(map(nbytes_of, arrays)))

    def difference(self, other: BatchSpec) -> str:
        """Describe how batches of `other` differ from those of this spec; empty if they do not."""
        if self.image != other.image:
            return (
                f"records begin with {other.image!r} instead of {self.image!r}, and the first leaf "
                "is the image that augment= changes: name it, such as images='image'"
            )
        if self.structure != other.structure:
            return f"structure {describe(other.structure)} instead of {describe(self.structure)}"
        for mine, its in zip(self.leaves, other.leaves, strict=True):
            if mine.dtype != its.dtype:
                return f"{mine.path} has dtype {_name(its.dtype)} instead of {_name(mine.dtype)}"
            same = len(mine.shape) == len(its.shape) if self.ragged else mine.shape == its.shape
            if not same:
                return f"{mine.path} has records of shape {its.shape} instead of {mine.shape}"
        return ""

    def rebuild(self, batch: Batch) -> Any:
        """Return the arrays of `batch` in the containers that the producer used."""
        if not self._has_text:
            return rebuild(self.structure, batch.leaves)
        pairs = zip(batch.leaves, self.leaves, strict=True)
        return rebuild(self.structure, [decoded(a) if leaf.text else a for a, leaf in pairs])

    def _fit(self, value: Any, leaf: LeafSpec, *, place: str) -> np.ndarray[Any, Any]:
        array = value if type(value) is np.ndarray else as_array(value, leaf.path, place=place)
        if array.dtype != leaf.dtype:
            array = _convert(array, leaf, place=place)
        fits = array.shape[1:] == leaf.shape or (self.ragged and array.ndim == len(leaf.shape) + 1)
        if not fits or array.ndim == 0:
            _refuse_shape(array, leaf, place=place)
        return array


def infer(
    batch: Any,
    *,
    dtypes: Any = None,
    ragged: bool = False,
    varied: Sequence[Sequence[bool]] | None = None,
    place: str = "the first batch",
) -> BatchSpec:
    """Infer the spec of all batches from the first one that has at least one record.

    With `ragged` (padded records), `varied` lists for each leaf which axes of its records varied.
    If it is None, or no axis varied, the first axis of every record is taken to vary: time, as a
    rule.

    Raise SpecError if a leaf has no leading dimension, if leading dimensions differ, or if a dtype
    is not a number, bool, bytes or text. Raise OptionError if `dtypes` does not fit the structure.
    """
    structure = structure_of(batch)
    paths = paths_of(structure)
    if not paths:
        raise SpecError(
            f"{place} is an empty container: expected arrays with one leading dimension"
        )
    arrays = [
        as_array(v, p, place=place)
        for v, p in zip(leaves_of(structure, batch) or [], paths, strict=True)
    ]
    produced = [produced_dtype(a) for a in arrays]
    wanted = _wanted_dtypes(dtypes, structure, produced=produced)
    shapes = _record_shapes(arrays, varied) if ragged else [a.shape[1:] for a in arrays]
    given = [want is not None for want in wanted]
    held = [BYTES if have == TEXT else have for have in produced]
    dtypes_out = [have if want is None else want for want, have in zip(wanted, held, strict=True)]
    leaves = tuple(map(LeafSpec, paths, dtypes_out, shapes, produced, given))
    return BatchSpec(structure, leaves, rows_of(arrays, leaves, place=place), ragged)


def with_shapes(spec: BatchSpec, shapes: Any) -> BatchSpec:
    """Return `spec` with the record shapes that the user states.

    `shapes` is a structure like the batch, with one shape for each leaf. Raise OptionError if it
    does not fit.
    """
    given = spread_shapes(spec.structure, shapes)
    have = rebuild(spec.structure, [leaf.shape for leaf in spec.leaves])
    if given is None or any(
        len(g) != len(leaf.shape) for g, leaf in zip(given, spec.leaves, strict=False)
    ):
        raise OptionError(
            f"shapes must give one record shape for each leaf, like {have}, got {shapes!r}"
        )
    if not spec.ragged and any(None in g for g in given):
        raise OptionError(
            f"shapes={shapes!r} has dimensions that vary, which requires pad=True (zeros) or "
            "pad=<number>"
        )
    leaves = tuple(
        replace(leaf, shape=tuple(g)) for leaf, g in zip(spec.leaves, given, strict=True)
    )
    return replace(spec, leaves=leaves)


def spread_shapes(structure: Structure, shapes: Any) -> list[Any] | None:
    """Return `shapes` as one tuple for each leaf, or None if it does not fit the structure.

    A tuple of numbers is a shape here, not a container.
    """
    wrapped = _wrap_shapes(shapes)
    found = flatten_like(structure, wrapped)
    return None if found is None else [getattr(f, "shape", ()) for f in found]


@dataclass(frozen=True)
class _ShapeLeaf:
    shape: tuple[int | None, ...]


def _wrap_shapes(shapes: Any) -> Any:
    if hasattr(shapes, "as_list"):  # tf.TensorShape
        shapes = shapes.as_list()
    if isinstance(shapes, dict):
        return {key: _wrap_shapes(value) for key, value in shapes.items()}
    if isinstance(shapes, (tuple, list)) and all(d is None or isinstance(d, int) for d in shapes):
        return _ShapeLeaf(tuple(shapes))
    return [_wrap_shapes(s) for s in shapes] if isinstance(shapes, (tuple, list)) else shapes


def as_array(value: Any, path: str, *, place: str) -> np.ndarray[Any, Any]:
    """Return a leaf as an array of numbers, bools, bytes or text with a leading dimension.

    Raise SpecError, which names the actual type, if that is not possible.
    """
    array = array_of(value, placed(path, place))
    if array.ndim == 0:
        raise SpecError(
            f"{placed(path, place)} is {_shown(value)}: expected an array with one leading "
            "dimension (the records of the batch). If the source yields single records, set "
            "records=True, batch_size=32; make arrays of an object in transform= or collate="
        )
    return check_dtype(array, placed(path, place))


def rows_of(
    arrays: Sequence[np.ndarray[Any, Any]], leaves: Sequence[LeafSpec], *, place: str
) -> int:
    """Return the leading dimension of all arrays; raise SpecError if they differ."""
    rows = int(arrays[0].shape[0])
    for array, leaf in zip(arrays, leaves, strict=True):
        if array.shape[0] != rows:
            raise SpecError(
                f"{placed(leaf.path, place)} has {array.shape[0]} records, {leaves[0].path} has "
                f"{rows}: expected the same leading dimension in every leaf. A list with one array "
                "for each record is no batch: pad=Pad(0, lengths=True) makes an array and the "
                "lengths of single records, in place of collate="
            )
    return rows


def _record_shapes(
    arrays: Sequence[np.ndarray[Any, Any]], varied: Sequence[Sequence[bool]] | None
) -> list[Shape]:
    if not varied or not any(map(any, varied)):
        varied = [(True, *(False for _ in a.shape[2:])) for a in arrays]
    return [
        tuple(
            None if varies or not size else size
            for size, varies in zip(a.shape[1:], axes, strict=False)
        )
        for a, axes in zip(arrays, varied, strict=True)
    ]


def _wanted_dtypes(
    dtypes: Any, structure: Structure, *, produced: Sequence[np.dtype[Any]]
) -> list[np.dtype[Any] | None]:
    """Return for each leaf the dtype to cast to, or None."""
    if dtypes is None:
        return [None] * len(produced)
    if not isinstance(dtypes, (tuple, list, dict)):
        return [_dtype(dtypes) if _is_floating(have) else None for have in produced]
    given = flatten_like(structure, dtypes)
    if given is None:
        raise OptionError(
            f"dtypes must be one dtype, or dtypes like the batch {describe(structure)}, got "
            f"{dtypes!r}"
        )
    return [None if want is None else _dtype(want) for want in given]


def _is_floating(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or (dtype.kind == "V" and "float" in dtype.name)


def _dtype(value: Any) -> np.dtype[Any]:
    """Return the numpy dtype of `value`, in native byte order; TensorFlow's dtypes give theirs as
    `as_numpy_dtype`."""
    if isinstance(value, (tuple, list, dict)):
        raise OptionError(f"dtypes must have a single dtype for each leaf, got {value!r} for one")
    try:
        found: np.dtype[Any] = np.dtype(getattr(value, "as_numpy_dtype", value))
        return found.newbyteorder("=")
    except TypeError:
        raise OptionError(
            f"dtypes must name dtypes, as in dtypes='float32', got {value!r}"
        ) from None


def _convert(array: np.ndarray[Any, Any], leaf: LeafSpec, *, place: str) -> np.ndarray[Any, Any]:
    """Cast as `dtypes` requests, or as byte order and the two forms of bytes require.

    Raise SpecError for every other difference between the dtypes.
    """
    array = check_dtype(array, placed(leaf.path, place))
    if leaf.dtype == BYTES and array.dtype.kind in "SOU" and produced_dtype(array) == leaf.produced:
        return encoded(array) if leaf.text else array
    if array.dtype == leaf.dtype:
        return array
    if not array.size and leaf.dtype != BYTES:  # an empty list has no meaningful dtype
        return array.astype(leaf.dtype)
    if leaf.cast and array.dtype.kind not in "SOUc" and leaf.dtype.kind not in "SOU":
        return cast(array, leaf.dtype, where=placed(leaf.path, place))
    if leaf.cast and array.dtype.kind == leaf.dtype.kind == "c":
        return array.astype(leaf.dtype)
    raise SpecError(
        f"{placed(leaf.path, place)} has dtype {array.dtype}: expected {_name(leaf.produced)} as "
        "in the first batch. Yield one dtype, or cast it with dtypes= in the structure of the batch"
    )


def _refuse_shape(array: np.ndarray[Any, Any], leaf: LeafSpec, *, place: str) -> None:
    if array.ndim == 0:
        raise SpecError(
            f"{placed(leaf.path, place)} is a scalar: expected an array with one leading dimension"
        )
    raise SpecError(
        f"{placed(leaf.path, place)} has records of shape {array.shape[1:]}: expected {leaf.shape} "
        "as in the first batch. Records that vary in shape require pad=True (zeros) or pad=<number>"
    )


def _name(dtype: np.dtype[Any]) -> str:
    return {BYTES: "bytes", TEXT: "text"}.get(dtype) or str(dtype)


def nbytes_of(array: np.ndarray[Any, Any]) -> int:
    """Return the bytes in memory; an object array counts its bytes objects beside the pointers."""
    return int(array.nbytes) + (sum(map(len, array.flat)) if array.dtype.kind == "O" else 0)


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} ({text if len(text) < 40 else text[:37] + '...'})"
