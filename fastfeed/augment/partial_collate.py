"""Collate some leaves of records, and reserve memory for the others, which the caller fills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastfeed.core.collate import Allocate, Blank, Pad, aligned_arrays, collate
from fastfeed.core.structure import Structure, leaves_of, rebuild

Array = np.ndarray[Any, Any]
PLACEHOLDER = np.zeros((), np.uint8)  # in place of a leaf that is not collated


def collate_partly(
    rows: Sequence[Sequence[Any]],
    reserved: Mapping[int, Blank],
    *,
    structure: Structure,
    pad: Pad,
    place: str,
    allocate: Allocate,
) -> tuple[Any, list[tuple[bool, ...]], dict[int, Array]]:
    """Return a batch of records with the leaves `rows`, which axes of each leaf varied, and the
    reserved arrays by leaf number.

    `reserved` gives the dtype of each of these arrays and its shape in a record. Numbers beyond
    the leaves of a record are arrays that belong to the batch without being part of it. Everything
    is in the memory that `allocate` returns, unless other leaves are padded, or are bytes. Raise
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
        rebuild(
            structure, [PLACEHOLDER if n in reserved else leaf for n, leaf in enumerate(leaves)]
        )
        for leaves in rows
    ]
    batch, varied = collate(records, pad, place=place, allocate=allocate_all)
    if not arrays:
        arrays = dict(zip(blanks, aligned_arrays(list(blanks.values())), strict=True))
    leaves = leaves_of(structure, batch) or []
    for n, (shape, _) in reserved.items():
        if n < len(leaves):
            leaves[n], varied[n] = arrays[n], (False,) * len(shape)
    return rebuild(structure, leaves), varied, arrays
