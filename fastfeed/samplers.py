"""Samplers that draw with repetition: in proportion to weights, or all classes equally often."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fastfeed.core.order import Indices, is_integer
from fastfeed.errors import OptionError


class Weighted:
    """Draws records with replacement, in proportion to their weights.

    An epoch has `count` draws; None means one for each weight. Raise OptionError if the weights are
    not finite, negative or all zero.
    """

    repeats = True

    def __init__(self, weights: Any, count: int | None = None) -> None:
        self._shares = _shares(_one_dimensional("weights", weights))
        self._count = _count(count, default=len(self._shares))

    def indices(self, seed: int, epoch: int, *, length: int) -> Indices:
        """Return the draws of one epoch, a function of (seed, epoch).

        Raise OptionError if the source has another length.
        """
        _same_length("Weighted", "weights", there=len(self._shares), length=length)
        return np.random.default_rng((seed, epoch)).choice(length, self._count, p=self._shares)


class Balanced:
    """Draws every class equally often, and the records of a class equally often, within 1.

    An epoch has `count` draws; None means one for each label. Each round draws one record of each
    class in random order, so that any part of an epoch is balanced, too. Raise OptionError for
    labels that cannot be sorted.
    """

    repeats = True

    def __init__(self, labels: Any, count: int | None = None) -> None:
        given = _one_dimensional("labels", labels)
        try:
            _, self._classes = np.unique(given, return_inverse=True)
        except TypeError as error:
            raise OptionError(
                f"labels must be of one type, all integers or all text: {error}"
            ) from None
        self._count = _count(count, default=len(given))

    def indices(self, seed: int, epoch: int, *, length: int) -> Indices:
        """Return the draws of one epoch, a function of (seed, epoch).

        Raise OptionError if the source has another length.
        """
        _same_length("Balanced", "labels", there=len(self._classes), length=length)
        rng = np.random.default_rng((seed, epoch))
        sizes = np.bincount(self._classes)
        rounds = -(-self._count // len(sizes))
        members = np.split(np.argsort(self._classes, kind="stable"), np.cumsum(sizes)[:-1])
        streams = np.stack(
            [_repeated_permutations(rng, own, length=rounds) for own in members], axis=1
        )
        return rng.permuted(streams, axis=1).reshape(-1)[: self._count]


def _repeated_permutations(rng: np.random.Generator, members: Indices, *, length: int) -> Indices:
    """Concatenate random permutations of `members` up to `length`."""
    times = -(-length // len(members))
    return rng.permuted(np.tile(members, (times, 1)), axis=1).reshape(-1)[:length]


def _shares(weights: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    if weights.dtype.kind not in "iufb":
        raise OptionError(f"weights must be numbers, got dtype {weights.dtype}")
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        raise OptionError(
            f"weights must be finite numbers >= 0, got {weights[bad[0]]} at index {bad[0]}"
        )
    largest = weights.max()
    if not largest:
        raise OptionError(f"weights must have at least one > 0, got {len(weights)} zeros")
    # scaled first: a sum of weights near 1e308 would overflow
    scaled = weights.astype(np.float64) / float(largest)
    shares: npt.NDArray[np.float64] = scaled / scaled.sum()
    return shares


def _one_dimensional(name: str, given: Any) -> npt.NDArray[Any]:
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise OptionError(f"{name} must be one-dimensional, one for each record: {error}") from None
    if array.ndim != 1 or not len(array):
        raise OptionError(
            f"{name} must be one-dimensional, one for each record, got shape {array.shape}"
        )
    return array


def _count(count: Any, *, default: int) -> int:
    if count is None:
        return default
    if not is_integer(count) or int(count) < 1:
        raise OptionError(
            f"count (records of an epoch) must be None or an integer >= 1, got {count!r}"
        )
    return int(count)


def _same_length(sampler: str, name: str, *, there: int, length: int) -> None:
    if there != length:
        raise OptionError(
            f"{sampler} must have one of its {name} for each record, got {there} {name} for "
            f"{length} records"
        )
