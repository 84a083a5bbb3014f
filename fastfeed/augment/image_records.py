"""What all executors do with records: the plan of their draws, and the collation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastfeed.augment.images import size_of
from fastfeed.augment.operations import Size
from fastfeed.augment.spec import Augment, Targets
from fastfeed.core.collate import Allocate, Blank, Fill, aligned_arrays, collate
from fastfeed.core.structure import Structure, describe, leaves_of, rebuild, structure_of
from fastfeed.errors import SpecError

Array = np.ndarray[Any, Any]
PLACEHOLDER = np.zeros((), np.uint8)  # in place of a leaf that is not collated


class PlannedRecord(NamedTuple):
    """A record before decoding, the sizes of its images, and their rows of the plan."""

    targets: Targets
    leaves: list[Any]
    key: int
    sizes: list[Size]
    rows: list[list[float]]


class RecordPlanner:
    """Splits records into leaves, and plans their draws."""

    def __init__(self, spec: Augment) -> None:
        self._spec = spec
        self._targets: Targets | None = None  # those of the last record, which most others share

    def plan(self, record: Any, key: int) -> PlannedRecord:
        """Return what is known without decoding; the same key gives the same draws. Raise BadImage
        for a file whose header is not that of an image, SpecError for any other leaf."""
        targets = self._targets
        leaves = None if targets is None else leaves_of(targets.structure, record)
        if targets is None or leaves is None:
            structure = structure_of(record)
            leaves = leaves_of(structure, record) or []
            if not leaves:
                raise SpecError(
                    f"Augment: a record is {describe(structure)}: must have at least an image"
                )
            targets = self._targets = self._spec.targets(structure, len(leaves))
        sizes = [size_of(leaves[n], self._spec, name=targets.names[n]) for n in targets.images]
        return PlannedRecord(targets, leaves, key, sizes, self._spec.plan(key, sizes))


def collate_partly(
    rows: Sequence[Sequence[Any]],
    reserved: Mapping[int, Blank],
    *,
    structure: Structure,
    pad: Fill,
    place: str,
    allocate: Allocate,
) -> tuple[Any, list[tuple[bool, ...]], dict[int, Array]]:
    """Return a batch of records with the leaves `rows`, which axes of each leaf varied, and the
    reserved arrays by leaf number, which the caller fills.

    `reserved` gives the shape in a record and the dtype of each of these arrays. Numbers beyond the
    leaves of a record are arrays that belong to the batch without being part of it. Everything is
    in the memory that `allocate` returns, unless other leaves are padded, or are bytes. Raise
    SpecError as `collate` does.
    """
    count = len(rows)
    blanks = {n: ((count, *shape), dtype) for n, (shape, dtype) in reserved.items()}
    arrays: dict[int, Array] = {}

    def allocate_all(requested: Sequence[Blank]) -> Sequence[Array]:
        wanted = dict(enumerate(requested)) | blanks
        given = dict(zip(wanted, allocate(list(wanted.values())), strict=True))
        arrays.update((n, given[n]) for n in blanks)
        return [
            np.empty(count, np.uint8) if n in blanks else given[n] for n in range(len(requested))
        ]

    records = [
        rebuild(structure, [PLACEHOLDER if n in reserved else leaf for n, leaf in enumerate(row)])
        for row in rows
    ]
    batch, varied = collate(records, pad, place=place, allocate=allocate_all)
    if not arrays:
        arrays = dict(zip(blanks, aligned_arrays(list(blanks.values())), strict=True))
    leaves = leaves_of(structure, batch) or []
    for n, (shape, _) in reserved.items():
        if n < len(leaves):
            leaves[n], varied[n] = arrays[n], (False,) * len(shape)
    return rebuild(structure, leaves), varied, arrays
