"""A mix of several sources in fixed proportions."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from functools import lru_cache
from heapq import heappop, heappush
from itertools import accumulate
from numbers import Real
from typing import Any

import numpy as np

from fastfeed.core.order import (
    Indices,
    Order,
    Permutation,
)
from fastfeed.errors import OptionError
from fastfeed.source.epoch_ends import changes_by_epoch

MAX_PERIOD = 2**16  # longest pattern of turns: 1 MB, up to 0.1 s to build


class Mix:
    """Several indexable sources as one, in proportion to their weights in every part of an epoch.

    Any n consecutive records contain n x share of each source, with an error below 2. A share is
    parts[i] / sum(parts). It is exact for weights in proportion to integers with a sum of up to
    65536, and otherwise within 2e-5, usually much closer.

    `given` is {source: weight} or [(source, weight), ...]. With stop="first" an epoch ends when it
    is the turn of a source that is exhausted. With stop="all" it ends when every record was
    delivered once, and shorter sources start again. len(mix) is the number of records in an epoch;
    mix[i] reads range(mix.size), all records of the first source and then those of the next.

    Raise OptionError for an invalid source or weight, or a share below 1/65536.
    """

    def __init__(self, given: Any, *, stop: str = "first") -> None:
        pairs = _pairs(given)
        self._sources = [_indexable(source) for source, _ in pairs]
        self.lengths = [len(source) for source in self._sources]
        self._offsets = [0, *accumulate(self.lengths)]
        if stop not in ("first", "all"):
            raise OptionError(f'stop must be "first" or "all", got {stop!r}')
        if 0 in self.lengths:
            raise OptionError(
                f"source {self.lengths.index(0)} of the mix is empty: every source must have at "
                "least one record"
            )
        self.parts = _parts([_weight(weight) for _, weight in pairs])
        self._turns, self._counts = _turns(self.parts)
        self._length = self._first_end() if stop == "first" else self._last_end()

    @property
    def size(self) -> int:
        """The number of records in all sources; mix[i] exists for range(size)."""
        return self._offsets[-1]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.size:
            raise IndexError(
                f"index {index} is out of range: the sources of the mix have {self.size} records"
            )
        number = bisect_right(self._offsets, index) - 1
        return self._sources[number][index - self._offsets[number]]

    def order(self, seed: int, epoch: int, *, shuffled: bool = False) -> Order:
        """Return the flat indices of one epoch.

        With `shuffled` each source is shuffled by itself, in a new order each time it starts again.
        """
        now = [len(source) for source in self._sources]
        if now != self.lengths:
            raise OptionError(
                f"a mix needs sources of constant length, they changed from {self.lengths} to {now}"
            )
        root = (seed, epoch) if shuffled else None
        streams = [_RepeatedSource(length, root, number=n) for n, length in enumerate(self.lengths)]
        parts = np.asarray(self.parts, np.int64)

        def at(positions: Indices) -> Indices:
            periods, places = np.divmod(positions, len(self._turns))
            numbers = self._turns[places]
            found = periods * parts[numbers] + self._counts[places]
            for number in np.unique(numbers).tolist():
                own = np.flatnonzero(numbers == number)
                found[own] = streams[number].at(found[own]) + self._offsets[number]
            return found

        return Order(self._length, at)

    def _first_end(self) -> int:
        """Return the first position whose source is exhausted."""
        return min(self._position(number, length) for number, length in enumerate(self.lengths))

    def _last_end(self) -> int:
        """Return the position after which every record was delivered at least once."""
        return 1 + max(
            self._position(number, length - 1) for number, length in enumerate(self.lengths)
        )

    def _position(self, number: int, count: int) -> int:
        """Return the position at which record `count` of a source's own stream comes."""
        periods, rest = divmod(count, self.parts[number])
        return periods * len(self._turns) + int(np.flatnonzero(self._turns == number)[rest])


class _RepeatedSource:
    """One source, repeated without end: in its own order, or newly shuffled in each repetition."""

    def __init__(self, length: int, root: tuple[int, int] | None, *, number: int) -> None:
        self._length = length
        self._shuffled = root is not None

        def permutation(repetition: int) -> Permutation:
            seed = np.random.SeedSequence((*(root or ()), number)).generate_state(1, np.uint64)
            return Permutation(length, int(seed[0]), repetition)

        # a block may end one repetition and begin the next
        self._permutation = lru_cache(maxsize=2)(permutation)

    def at(self, counts: Indices) -> Indices:
        """Return the index of each of the stream's records `counts`."""
        repetitions, indices = np.divmod(counts, self._length)
        if self._shuffled:
            for repetition in np.unique(repetitions).tolist():
                own = np.flatnonzero(repetitions == repetition)
                indices[own] = self._permutation(repetition).at(indices[own])
        return indices


def _turns(parts: list[int]) -> tuple[Indices, Indices]:
    """Return the source of each position in a period, and how often it came before in the period.

    Record k of a source may not come before position floor(k / share), and must come before ceil((k
    + 1) / share). Of the records that may come, the one with the earliest limit is next. This keeps
    all limits, so that any prefix of the order is off by less than 1 and any part of it by less
    than 2 (Baruah et al., Proportionate progress, 1996). A merge of the sources by the times (k +
    1/2) / share does not: 7/10 and three times 1/10 would give three consecutive records without
    the first source.
    """
    total = sum(parts)
    later = [(0, number) for number in range(len(parts))]
    urgent: list[tuple[int, int]] = []
    given = [0] * len(parts)
    turns, counts = np.empty(total, np.int64), np.empty(total, np.int64)
    for position in range(total):
        while later and later[0][0] <= position:
            number = heappop(later)[1]
            heappush(urgent, (-(-(given[number] + 1) * total // parts[number]), number))
        number = heappop(urgent)[1]
        turns[position], counts[position] = number, given[number]
        given[number] += 1
        heappush(later, (given[number] * total // parts[number], number))
    return turns, counts


def _parts(weights: list[float]) -> list[int]:
    """Return the smallest integers in proportion to `weights`, with a sum of at most MAX_PERIOD.

    If there are none, return the closest ones. Raise OptionError for a share below 1/MAX_PERIOD.
    """
    largest = max(weights)  # division first: a sum of weights near 1e308 would overflow
    shares = [weight / largest for weight in weights]
    shares = [share / math.fsum(shares) for share in shares]
    least = min(range(len(shares)), key=shares.__getitem__)
    totals = np.arange(1, MAX_PERIOD + 1)
    error, parts_sum = np.zeros(MAX_PERIOD), np.zeros(MAX_PERIOD)
    for share in shares:
        parts = np.rint(totals * share)
        parts_sum += parts
        error = np.maximum(error, np.where(parts > 0, abs(parts / totals - share), np.inf))
    error[parts_sum != totals] = np.inf
    # Two fractions with denominators of at most 2**16 differ by at least 2e-10: a difference below
    # 1e-12 means that they are equal.
    best = int(np.argmax(error < 1e-12) if (error < 1e-12).any() else np.argmin(error))
    if shares[least] < (1 - 1e-9) / MAX_PERIOD or not np.isfinite(error[best]):
        raise OptionError(
            f"source {least} of the mix has {shares[least]:.2g} of the total weight: every source "
            f"needs at least 1/{MAX_PERIOD}"
        )
    return [round(share * (best + 1)) for share in shares]


def _pairs(given: Any) -> list[tuple[Any, Any]]:
    """Return (source, weight) pairs.

    The result is a plain list, because a source or weight is identified only by its place.
    """
    pairs = (
        list(given.items() if isinstance(given, Mapping) else given)
        if isinstance(given, Iterable)
        else []
    )
    if not pairs or not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        raise OptionError(
            "Mix requires {source: weight} or [(source, weight), ...], got "
            f"{type(given).__name__}"
        )
    return [(source, weight) for source, weight in pairs]


def _weight(weight: Any) -> float:
    number = float(weight) if isinstance(weight, Real) and not isinstance(weight, bool) else 0.0
    if not 0 < number < math.inf:
        raise OptionError(f"a weight in a mix must be a finite number > 0, got {weight!r}")
    return number


def _indexable(source: Any) -> Any:
    """Return the source; raise OptionError if it does not give records by index."""
    kind = type(source).__name__
    if isinstance(source, Mix):
        raise OptionError(
            "a source in a mix must not be a Mix: pass all plain sources to one Mix and multiply "
            "their weights"
        )
    if changes_by_epoch(source):
        raise OptionError(
            f"a source in a mix must not have an on_epoch_end, got {kind}: the mix has epochs "
            "of its own. Where it only shuffles, leave it out, and set shuffle=True"
        )
    by_number = hasattr(source, "__len__") and hasattr(source, "__getitem__")
    columns = isinstance(source, tuple) and not all(map(np.isscalar, source))
    if isinstance(source, (str, bytes, Mapping)) or columns or not by_number:
        raise OptionError(
            f"a source in a mix must have len() and [index] by number, so that it can be read in "
            f"any order, got {kind}. Make a list of records of columns, as in list(zip(x, y))"
        )
    return source
