"""Several sources as one, in fixed proportions."""

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
    BlockOrder,
    Indices,
    Order,
    Permutation,
)
from fastfeed.errors import OptionError

PERIOD = 2**16  # the longest pattern of turns: 1 MB, made in up to 0.1 s


class Mix:
    """Indexable sources as one, in proportion to their weights in every part of an epoch: any n
    records in a row have n x share of each source, within less than 2.

    A share is parts[i] / sum(parts), which is exact for weights in proportion to integers with a
    sum of up to 65536, and else within 2e-5, usually much nearer. `given` is {source: weight} or
    [(source, weight), ...]. An epoch ends when the source whose turn it is has no more
    (stop="first"), or when all have been delivered whole, for which shorter ones begin again
    (stop="all"). len(mix) is the number of records of an epoch, while mix[i] reads range(mix.size):
    all records of the first source, then those of the next. Raise OptionError for something that is
    no source or no weight, and for a share below 1/65536.
    """

    def __init__(self, given: Any, *, stop: str = "first") -> None:
        pairs = _pairs(given)
        self._sources = [_indexable(source) for source, _ in pairs]
        self.lengths = [len(source) for source in self._sources]
        self._offsets = [0, *accumulate(self.lengths)]
        if stop not in ("first", "all"):
            raise OptionError(f'stop={stop!r}: must be "first" or "all"')
        if 0 in self.lengths:
            raise OptionError(
                f"source {self.lengths.index(0)} of the mix has a length of 0: must have at least "
                "1 record"
            )
        self.parts = _parts([_weight(weight) for _, weight in pairs])
        self._turns, self._counts = _turns(self.parts)
        self._length = self._first_end() if stop == "first" else self._last_end()

    @property
    def size(self) -> int:
        """Records of all sources together: mix[i] exists for range(size)."""
        return self._offsets[-1]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.size:
            raise IndexError(
                f"index {index} of a mix whose sources have {self.size} records together"
            )
        number = bisect_right(self._offsets, index) - 1
        return self._sources[number][index - self._offsets[number]]

    def order(self, seed: int, epoch: int, *, shuffled: bool = False) -> Order:
        """Return the flat indices of one epoch. `shuffled`: each source in a new random order
        whenever it begins again."""
        now = [len(source) for source in self._sources]
        if now != self.lengths:
            raise OptionError(
                f"the lengths of the mix's sources changed from {self.lengths} to {now}"
            )
        root = (seed, epoch) if shuffled else None
        streams = [_Stream(length, root, number=n) for n, length in enumerate(self.lengths)]
        parts = np.asarray(self.parts, np.int64)

        def at(positions: Indices) -> Indices:
            periods, places = np.divmod(positions, len(self._turns))
            numbers = self._turns[places]
            found = periods * parts[numbers] + self._counts[places]
            for number in np.unique(numbers).tolist():
                own = np.flatnonzero(numbers == number)
                found[own] = streams[number].at(found[own]) + self._offsets[number]
            return found

        return BlockOrder(self._length, at)

    def _first_end(self) -> int:
        """Return the first position whose source has no more."""
        return min(self._position(number, length) for number, length in enumerate(self.lengths))

    def _last_end(self) -> int:
        """Return the position after the last first delivery of a record."""
        return 1 + max(
            self._position(number, length - 1) for number, length in enumerate(self.lengths)
        )

    def _position(self, number: int, count: int) -> int:
        """Return the position of record `count` of a source's own stream."""
        periods, rest = divmod(count, self.parts[number])
        return periods * len(self._turns) + int(np.flatnonzero(self._turns == number)[rest])


class _Stream:
    """One source, repeated: in its own order, or in a new random one each time."""

    def __init__(self, length: int, root: tuple[int, int] | None, *, number: int) -> None:
        self._length = length
        self._shuffled = root is not None

        def pass_of(times: int) -> Permutation:
            seed = np.random.SeedSequence((*(root or ()), number)).generate_state(1, np.uint64)
            return Permutation(length, int(seed[0]), times)

        # a block may end one repetition and begin the next
        self._pass = lru_cache(maxsize=2)(pass_of)

    def at(self, counts: Indices) -> Indices:
        """Return the index of each of the stream's records `counts`."""
        passes, found = np.divmod(counts, self._length)
        if self._shuffled:
            for times in np.unique(passes).tolist():
                own = np.flatnonzero(passes == times)
                found[own] = self._pass(times).at(found[own])
        return found


def _turns(parts: list[int]) -> tuple[Indices, Indices]:
    """Return which source each position of a period takes from, and how many of that source came
    before it.

    A source's record k may come from position floor(k / share) on and must come before ceil((k + 1)
    / share); of those that may, the most urgent comes first. That keeps all the limits, so that any
    beginning of the order is less than 1 off, and any part of it less than 2 (Baruah et al.,
    Proportionate progress, 1996). Merging the sources by the times (k + 1/2) / share does not: 7/10
    and three times 1/10 would give three records in a row without the first source.
    """
    total = sum(parts)
    later, urgent, given = (
        [(0, number) for number in range(len(parts))],
        list[tuple[int, int]](),
        [0] * len(parts),
    )
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
    """Return the smallest integers in proportion to `weights`, with a sum of at most PERIOD; the
    nearest if there are none."""
    largest = max(weights)  # divided by first, because a sum of weights near 1e308 would overflow
    shares = [weight / largest for weight in weights]
    shares = [share / math.fsum(shares) for share in shares]
    least = min(range(len(shares)), key=shares.__getitem__)
    totals = np.arange(1, PERIOD + 1)
    error, parts_sum = np.zeros(PERIOD), np.zeros(PERIOD)
    for share in shares:
        parts = np.rint(totals * share)
        parts_sum += parts
        error = np.maximum(error, np.where(parts > 0, abs(parts / totals - share), np.inf))
    error[parts_sum != totals] = np.inf
    # Two fractions with denominators of at most 2**16 differ by at least 2e-10: a difference below
    # 1e-12 is none.
    best = int(np.argmax(error < 1e-12) if (error < 1e-12).any() else np.argmin(error))
    if shares[least] < (1 - 1e-9) / PERIOD or not np.isfinite(error[best]):
        raise OptionError(
            f"source {least} of the mix has {shares[least]:.2g} of the whole weight: needed "
            f"1/{PERIOD} or more"
        )
    return [round(share * (best + 1)) for share in shares]


def _pairs(given: Any) -> list[tuple[Any, Any]]:
    """Return (source, weight) pairs as a plain list: sources and weights are distinguished only by
    position."""
    pairs = (
        list(given.items() if isinstance(given, Mapping) else given)
        if isinstance(given, Iterable)
        else []
    )
    if not pairs or not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        raise OptionError(
            f"Mix({type(given).__name__}): needed {{source: weight}} or [(source, weight), ...]"
        )
    return [(source, weight) for source, weight in pairs]


def _weight(weight: Any) -> float:
    number = float(weight) if isinstance(weight, Real) and not isinstance(weight, bool) else 0.0
    if not 0 < number < math.inf:
        raise OptionError(f"a weight of {weight!r} in a mix: must be a finite number above 0")
    return number


def _indexable(source: Any) -> Any:
    """Return the source itself. Raise OptionError for one that has no records by number."""
    kind = type(source).__name__
    if isinstance(source, Mix):
        raise OptionError(
            "a Mix in a mix: must be plain sources; give them all to one, with their weights "
            "multiplied"
        )
    by_number = hasattr(source, "__len__") and hasattr(source, "__getitem__")
    if isinstance(source, (str, bytes, Mapping)) or not by_number:
        raise OptionError(
            f"a {kind} in a mix: needed sources with len() and [index], which can be read in any "
            "order"
        )
    return source
