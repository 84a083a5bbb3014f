"""Batches of any structure; every value identifies its record and its leaf."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from fastfeed.core.batch import Batch, BatchSpec, infer

NUMBERS = ["i1", "u1", "i4", "i8", "f2", "f4", "f8", "c8", "?", ">i4", ">f8"]


@dataclass(frozen=True)
class Leaf:
    """`dtype` may be a number's, S (bytes of fixed length) or O (bytes of any length)."""

    dtype: str
    shape: tuple[int, ...] = ()


class Pair(NamedTuple):
    image: Any
    label: Any


leaves = st.builds(
    Leaf, st.sampled_from([*NUMBERS, "S4", "O"]), st.lists(st.integers(1, 3), max_size=2).map(tuple)
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        several,
        several.map(tuple),
        st.dictionaries(st.sampled_from(["x", "y", 3, (1, 2)]), inner, min_size=1, max_size=3),
        st.builds(Pair, inner, inner),
    )


# What a source yields, with a Leaf in place of each array.
templates = st.recursive(leaves, _containers, max_leaves=5)


def make(template: Any, ids: Sequence[int]) -> Any:
    """The batch that holds the records `ids`, each below 100: in leaf number k each value of record
    i is i + k."""
    return _make(template, np.asarray(ids, int), count())


def record(template: Any, index: int) -> Any:
    """The same as one record, without the leading dimension."""
    return _first(make(template, [index]))


def same(have: Any, want: Any) -> bool:
    """Equal in containers, and in every leaf: shape, values, and dtype but for its byte order."""
    if isinstance(want, dict):
        return (
            type(have) is dict
            and list(have) == list(want)
            and all(same(have[key], want[key]) for key in want)
        )
    if isinstance(want, (tuple, list)):
        return type(have) is type(want) and len(have) == len(want) and all(map(same, have, want))
    kinds = {have.dtype.newbyteorder("="), want.dtype.newbyteorder("=")}
    return have.shape == want.shape and len(kinds) == 1 and bool((have == want).all())


def checked(template: Any, ids: Sequence[int]) -> tuple[BatchSpec, Batch]:
    """The spec that the batch has, and the batch checked against it."""
    batch = make(template, ids)
    spec = infer(batch)
    return spec, spec.check(batch, "the batch")


def _make(node: Any, ids: np.ndarray, numbers: Iterator[int]) -> Any:
    if isinstance(node, Leaf):
        return _array(node, ids + next(numbers))
    if isinstance(node, dict):
        return {key: _make(child, ids, numbers) for key, child in node.items()}
    children = [_make(child, ids, numbers) for child in node]
    return type(node)(*children) if isinstance(node, Pair) else type(node)(children)


def _array(leaf: Leaf, values: np.ndarray) -> np.ndarray:
    full = np.repeat(values, int(np.prod(leaf.shape))).reshape(len(values), *leaf.shape)
    if leaf.dtype == "?":
        return full % 2 == 1
    if leaf.dtype not in "S4 O":
        return full.astype(leaf.dtype)
    out = np.empty(full.shape, object)
    for place in np.ndindex(full.shape):
        out[place] = b"%d\0" % full[place] if leaf.dtype == "O" else b"%d" % full[place]
    return out.astype(leaf.dtype)


def _first(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: _first(child) for key, child in batch.items()}
    if isinstance(batch, tuple | list):
        children = [_first(child) for child in batch]
        return type(batch)(*children) if isinstance(batch, Pair) else type(batch)(children)
    return batch[0]
