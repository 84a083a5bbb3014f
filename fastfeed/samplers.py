"""Samplers that draw with repetition: in proportion to weights, all classes equally often, or pairs
of one class, also across two domains."""

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
        _, self._classes = _classes_of(labels)
        self._count = _count(count, default=len(self._classes))

    def indices(self, seed: int, epoch: int, *, length: int) -> Indices:
        """Return the draws of one epoch, a function of (seed, epoch).

        Raise OptionError if the source has another length.
        """
        _same_length("Balanced", "labels", there=len(self._classes), length=length)
        rng = np.random.default_rng((seed, epoch))
        classes = int(self._classes.max()) + 1
        drawn = _distinct_classes(rng, classes, size=1, count=self._count)
        found = np.empty(self._count, np.int64)
        wanted = np.bincount(drawn, minlength=classes)
        found[np.argsort(drawn, kind="stable")] = _members(rng, self._classes, wanted=wanted)
        return found


class Pairs:
    """Draws pairs of two different records of one class; all classes of a batch differ.

    The order is anchor, positive, anchor, positive: `batch[0::2]` are the anchors, `batch[1::2]`
    their positives. Every class comes equally often in an epoch, and so do the records of a class,
    within 1. `batch_size` is that of the runner, in records: two for each pair. An epoch has
    `count` records; None means as many whole batches as the labels would fill once.

    With `anchors`, one bool for each record, a pair crosses two domains: its anchor is a record
    where it is True (a photo in the street), its positive one where it is False (in the shop). Each
    class then has its records of each domain equally often, within 1.

    Raise OptionError for a class of one record, or of none in a domain, and for more pairs in a
    batch than classes.
    """

    repeats = True

    def __init__(
        self,
        labels: Any,
        batch_size: int,
        *,
        anchors: Any = None,
        count: int | None = None,
    ) -> None:
        names, self._classes = _classes_of(labels)
        self._anchors = None if anchors is None else _mask(anchors, length=len(self._classes))
        if not is_integer(batch_size) or int(batch_size) < 2 or int(batch_size) % 2:
            raise OptionError(
                "batch_size of Pairs (records of a batch, two for each pair) must be an even "
                f"integer >= 2, got {batch_size!r}"
            )
        # a rank of shard= takes whole batches
        self.group_size = int(batch_size)
        if self._anchors is None:
            _refuse_single_records(names, self._classes)
        else:
            _refuse_missing_domains(names, self._classes, anchors=self._anchors)
        if self.group_size > 2 * len(names):
            raise OptionError(
                f"batch_size={batch_size} is {self.group_size // 2} pairs of different classes, "
                f"but the labels have {len(names)} classes: lower batch_size to {2 * len(names)} "
                "or less"
            )
        whole = len(self._classes) // self.group_size * self.group_size
        self._count = _count(count, default=whole)
        if self._count % self.group_size:
            raise OptionError(
                f"count (records of an epoch) of Pairs must be a multiple of batch_size="
                f"{self.group_size}, got {count!r}"
            )

    def indices(self, seed: int, epoch: int, *, length: int) -> Indices:
        """Return the draws of one epoch, a function of (seed, epoch).

        Raise OptionError if the source has another length.
        """
        _same_length("Pairs", "labels", there=len(self._classes), length=length)
        rng = np.random.default_rng((seed, epoch))
        classes = int(self._classes.max()) + 1
        drawn = _distinct_classes(rng, classes, size=self.group_size // 2, count=self._count // 2)
        if self._anchors is None:
            domains = [np.arange(length)]
        else:
            domains = [np.flatnonzero(self._anchors), np.flatnonzero(~self._anchors)]
        each = 2 // len(domains)
        wanted = each * np.bincount(drawn, minlength=classes)
        members = [r[_members(rng, self._classes[r], wanted=wanted)] for r in domains]
        found = np.empty((len(drawn), 2), np.int64)
        found[np.argsort(drawn, kind="stable")] = np.hstack([m.reshape(-1, each) for m in members])
        return found.reshape(-1)


# Their epochs all have the same length, and their numbers are settings, not counters.
FIXED_SAMPLERS = (Weighted, Balanced, Pairs)


def _distinct_classes(rng: np.random.Generator, classes: int, *, size: int, count: int) -> Indices:
    """Return `count` classes, all equally often within 1, of which every `size` in a row from a
    multiple of `size` differ.

    Each round has all classes in random order. Where a batch spans two rounds, its classes from the
    first one are moved back in the second.
    """
    rounds = rng.permuted(np.tile(np.arange(classes), (-(-count // classes), 1)), axis=1)
    for number in range(1, len(rounds)):
        begun = number * classes % size
        if begun:
            mine, taken = rounds[number], np.zeros(classes, bool)
            taken[rounds[number - 1, classes - begun :]] = True
            first = np.zeros(classes, bool)
            first[np.flatnonzero(~taken[mine])[: size - begun]] = True
            rounds[number] = np.concatenate([mine[first], mine[~first]])
    drawn: Indices = rounds.reshape(-1)[:count]
    return drawn


def _members(rng: np.random.Generator, labels: Indices, *, wanted: Indices) -> Indices:
    """Return `wanted[c]` records of each class c in turn, from its repeated permutations.

    Pairs of a class of an odd number of records meet two permutations in the middle of a pair,
    whose records must differ.
    """
    sizes = np.bincount(labels)
    members, starts = np.argsort(labels, kind="stable"), np.cumsum(sizes) - sizes
    # each run is one permutation of one class
    runs = np.repeat(np.arange(len(sizes)), -(-wanted // sizes))
    ends = np.cumsum(sizes[runs])
    run = np.repeat(np.arange(len(runs)), sizes[runs])
    place = np.arange(len(run)) - (ends - sizes[runs])[run]
    drawn = members[starts[runs][run] + place][np.lexsort((rng.random(len(run)), run))]
    number = np.arange(len(runs)) - np.searchsorted(runs, runs)
    odd = np.flatnonzero((sizes[runs] % 2 == 1) & (sizes[runs] > 1) & (number % 2 == 1))
    same = ends[odd - 1][drawn[ends[odd - 1] - 1] == drawn[ends[odd - 1]]]
    drawn[same], drawn[same + 1] = drawn[same + 1], drawn[same]
    first = ends[np.searchsorted(runs, runs)] - sizes[runs]
    used = np.arange(len(run)) - first[run] < wanted[runs][run]
    found: Indices = drawn[used]
    return found


def _refuse_single_records(names: npt.NDArray[Any], classes: Indices) -> None:
    """Raise OptionError for a class that has no second record."""
    single = np.flatnonzero(np.bincount(classes) == 1)
    if len(single):
        record = int(np.flatnonzero(classes == single[0])[0])
        raise OptionError(
            f"a pair needs two records of its class, and {len(single)} of {len(names)} classes "
            f"have one: {_listed(names[single])} (the first is record {record}); leave these "
            "classes out of the source and its labels, or add records to them"
        )


def _refuse_missing_domains(
    names: npt.NDArray[Any], classes: Indices, *, anchors: npt.NDArray[np.bool_]
) -> None:
    """Raise OptionError for a class that has no record in one of the two domains."""
    for domain in (True, False):
        counts = np.bincount(classes[anchors == domain], minlength=len(names))
        missing = np.flatnonzero(counts == 0)
        if len(missing):
            raise OptionError(
                "a pair needs an anchor and a positive of its class, and "
                f"{len(missing)} of {len(names)} classes have no record where anchors is {domain}: "
                f"{_listed(names[missing])}; leave these classes out of the source, its labels and "
                "anchors, or add records to them"
            )


def _listed(names: npt.NDArray[Any]) -> str:
    return ", ".join(map(repr, names[:5].tolist())) + (", ..." if len(names) > 5 else "")


def _mask(anchors: Any, *, length: int) -> npt.NDArray[np.bool_]:
    mask = _one_dimensional("anchors", anchors)
    if mask.dtype != bool or len(mask) != length:
        raise OptionError(
            "anchors of Pairs must be a bool for each label, True where the record is an anchor "
            f"(such as domains == 'street'), got {len(mask)} of dtype {mask.dtype} for {length} "
            "labels"
        )
    return mask.copy()


def _classes_of(labels: Any) -> tuple[npt.NDArray[Any], Indices]:
    """Return the sorted names of the classes, and the number of each record's class."""
    given = _one_dimensional("labels", labels)
    try:
        names, classes = np.unique(given, return_inverse=True)
    except TypeError as error:
        raise OptionError(
            f"labels must be of one type, all integers or all text: {error}"
        ) from None
    return names, classes


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
