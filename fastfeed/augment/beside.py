"""Batches some of whose leaves are filled by the caller, beside others that are collated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastfeed.core.collate import (
    Allocate,
    Blank,
    Pad,
    aligned_arrays,
    collate,
)
from fastfeed.core.structure import Structure, leaves_of, rebuild

Array = np.ndarray[Any, Any]
NOTHING = np.zeros((), np.uint8)  # stands for a leaf that is not collated


def beside(
    rows: Sequence[Sequence[Any]],
    own: Mapping[int, Blank],
    *,
    structure: Structure,
    pad: Pad,
    place: str,
    allocate: Allocate,
) -> tuple[Any, list[tuple[bool, ...]], dict[int, Array]]:
    """Return a batch of records with the leaves `rows`; for each leaf which axes of its records
    varied; and the arrays of `own`, by leaf number, to be filled: `own` gives their dtype and their
    shape in a record. Numbers beyond the records' leaves are arrays that belong to the batch
    without being part of it.

    All of it is written into what `allocate` returns, unless other leaves are padded, or are bytes.
    Raise SpecError as `collate` does.
    """
    count = len(rows)
    blanks = {n: ((count, *shape), dtype) for n, (shape, dtype) in own.items()}
    arrays: dict[int, Array] = {}

    def allocated(asked: Sequence[Blank]) -> Sequence[Array]:
        wanted = dict(enumerate(asked)) | blanks
        given = dict(zip(wanted, allocate(list(wanted.values())), strict=True))
        arrays.update((n, given[n]) for n in blanks)
        return [np.empty(count, np.uint8) if n in blanks else given[n] for n in range(len(asked))]

    records = [
        rebuild(structure, [NOTHING if n in own else leaf for n, leaf in enumerate(leaves)])
        for leaves in rows
    ]
    batch, varied = collate(records, pad, place=place, allocate=allocated)
    if not arrays:
        arrays = dict(zip(blanks, aligned_arrays(list(blanks.values())), strict=True))
    leaves = leaves_of(structure, batch) or []
    for n, (shape, _) in own.items():
        if n < len(leaves):
            leaves[n], varied[n] = arrays[n], (False,) * len(shape)
    return rebuild(structure, leaves), varied, arrays
