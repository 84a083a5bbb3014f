"""Samplers that draw records repeatedly: in proportion to weights, or all classes equally often."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from fastfeed.errors import OptionError

Indices = npt.NDArray[np.int64]


class Weighted:
    """Draws with replacement, each record in proportion to its weight, `count` times an epoch
    (None: as many as there are weights). Raise OptionError for weights that are no proportions."""

    repeats = True

    def __init__(self, weights: Any, count: int | None = None) -> None:
        self._shares = _shares(_one_dimensional("weights", weights))
        self._count = _count(count, default=len(self._shares))

    def indices(self, seed: int, epoch: int, *, length: int) -> Indices:
        """Return the draws of one epoch: the same for the same seed and epoch. Raise OptionError
        for a source of another length."""
        _same_length("Weighted", "weights", there=len(self._shares), length=length)
        return np.random.default_rng((seed, epoch)).choice(length, self._count, p=self._shares)


class Balanced:
    """Draws every class equally often and, in it, every record equally often, both within 1,
    `count` times an epoch (None: as many as there are labels). Raise OptionError for labels that
    cannot be sorted.

    Each round draws one record of each class, in random order, so that any part of an epoch is
    balanced, too.
    """

    repeats = True

    def __init__(self, labels: Any, count: int | None = None) -> None:
        given = _one_dimensional("labels", labels)
        try:
            _, self._classes = np.unique(given, return_inverse=True)
        except TypeError as error:
            raise OptionError(
                f"labels: must be labels of one type, all integers or all text; {error}"
            ) from None
        self._count = _count(count, default=len(given))

    def indices(self, seed: int, epoch: int, *, length: int) -> Indices:
        """Return the draws of one epoch: the same for the same seed and epoch. Raise OptionError
        for a source of another length."""
        _same_length("Balanced", "labels", there=len(self._classes), length=length)
        rng = np.random.default_rng((seed, epoch))
        sizes = np.bincount(self._classes)
        rounds = -(-self._count // len(sizes))
        members = np.split(np.argsort(self._classes, kind="stable"), np.cumsum(sizes)[:-1])
        streams = np.stack([_passes(rng, own, length=rounds) for own in members], axis=1)
        return rng.permuted(streams, axis=1).reshape(-1)[: self._count]


def _passes(rng: np.random.Generator, members: Indices, *, length: int) -> Indices:
    """Return one permutation of `members` after the other."""
    times = -(-length // len(members))
    return rng.permuted(np.tile(members, (times, 1)), axis=1).reshape(-1)[:length]


def _shares(weights: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    if weights.dtype.kind not in "iufb":
        raise OptionError(f"weights: must be numbers, and there were {weights.dtype}")
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        raise OptionError(
            f"weights: number {bad[0]} is {weights[bad[0]]}; must be finite numbers >= 0"
        )
    largest = weights.max()
    if not largest:
        raise OptionError(f"weights: all {len(weights)} are 0; must have at least one above 0")
    # first, because a sum of weights near 1e308 would overflow
    scaled = weights.astype(np.float64) / float(largest)
    shares: npt.NDArray[np.float64] = scaled / scaled.sum()
    return shares


def _one_dimensional(name: str, given: Any) -> npt.NDArray[Any]:
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise OptionError(f"{name}: needed one for each record; {error}") from None
    if array.ndim != 1 or not len(array):
        raise OptionError(
            f"{name}: needed one for each record, and there was an array of shape {array.shape}"
        )
    return array


def _count(count: Any, *, default: int) -> int:
    if count is None:
        return default
    if isinstance(count, bool) or not isinstance(count, Integral) or int(count) < 1:
        raise OptionError(f"count={count!r}: must be an integer >= 1: the records of an epoch")
    return int(count)


def _same_length(sampler: str, name: str, *, there: int, length: int) -> None:
    if there != length:
        raise OptionError(
            f"{sampler} has {there} {name} and the source has {length} records: needed one for each"
        )
