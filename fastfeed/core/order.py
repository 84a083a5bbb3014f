"""The order of an epoch: which index has which position. It is computed on demand and never stored
whole.

An `Order` is a pure function of (seed, epoch, recipe): any part of it is the same at any time,
which lets ranks agree without communication, and a run continue in the middle of an epoch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from numbers import Integral
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fastfeed.errors import OptionError

Indices = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

# a table of 8 MB is made in 15 ms and is read faster than the network is computed
TABLE_LENGTH = 2**20
# positions that are computed at a time: numpy's cost of a call is spread over all of them
BLOCK = 4096
# changes of both halves; with a single one neighbours stay related, which a chi-square test detects
ROUNDS = 3


class Order(Protocol):
    """The indices of one epoch by position."""

    @property
    def length(self) -> int:
        """Number of positions of the epoch."""

    def indices(self, start: int, stop: int) -> list[int]:
        """Return `list(whole)[start:stop]`."""

    def at(self, positions: Indices) -> Indices:
        """Return the index at each of `positions`, all of which are in range(length)."""


@dataclass(frozen=True)
class Recipe:
    """How the order of an epoch is made. Raise OptionError for parts that cannot be combined.

    `shard` is (rank, world): all ranks share one order, of which a rank takes the positions rank,
    rank + world and so on, equally many on every rank. `remainder` decides about records that
    cannot be divided: "drop" leaves out the last ones of the epoch's order, "pad" repeats its first
    ones, which are then delivered twice.
    """

    shuffled: bool = False
    # has indices(seed, epoch, length), or is an iterable of indices that is iterated in each epoch
    sampler: Any = None
    shard: tuple[int, int] | None = None
    remainder: str | None = None

    def __post_init__(self) -> None:
        if self.shard is not None:
            object.__setattr__(self, "shard", check_shard(self.shard))
        if self.remainder not in (None, "drop", "pad"):
            raise OptionError(f'remainder={self.remainder!r}: must be None, "drop" or "pad"')
        if self.sampler is not None and self.shuffled:
            raise OptionError("a sampler has its own order: leave shuffle out, or the sampler")
        if hasattr(self.sampler, "__next__"):
            raise OptionError(
                f"sampler={_name(self.sampler)}: must be an object that can be iterated again in "
                "each epoch, but an iterator ends once; pass the list, or the object that makes "
                "the iterator"
            )


def order_of(
    length: int, *, seed: int, epoch: int, recipe: Recipe, base: Order | None = None
) -> Order:
    """Return the order of one epoch over `length` records, or of `base` (which already has an
    order), as `recipe` says.

    Raise OptionError for wrong indices of a sampler and for records that cannot be divided among
    the ranks.
    """
    if base is not None and recipe.sampler is not None:
        raise OptionError(
            "a mix has its own order: leave sampler out, or sample from one plain source"
        )
    if base is not None:
        whole: Order = base
    elif recipe.sampler is not None:
        drawn = _sampled(recipe.sampler, (seed, epoch), length=length)
        whole = BlockOrder(len(drawn), drawn.__getitem__)
    else:
        whole = BlockOrder(
            length, Permutation(length, seed, epoch).at if recipe.shuffled else _same
        )
    return (
        whole if recipe.shard is None else _share(whole, recipe.shard, remainder=recipe.remainder)
    )


def check_shard(shard: Any) -> tuple[int, int]:
    """Return (rank, world) as plain integers. Raise OptionError for anything else."""
    if not isinstance(shard, (tuple, list)) or len(shard) != 2 or not all(map(_is_integer, shard)):
        raise OptionError(f"shard={shard!r}: must be two integers (rank, world), such as (0, 8)")
    rank, world = int(shard[0]), int(shard[1])
    if world < 1:
        raise OptionError(f"shard={shard!r}: the world must have at least 1 rank")
    if not 0 <= rank < world:
        raise OptionError(
            f"shard={shard!r}: ranks count from 0, and the last of {world} is {world - 1}"
        )
    return rank, world


class BlockOrder:
    """An Order by a function of positions, which is called for a whole block; the last block is
    cached."""

    def __init__(self, length: int, at: Callable[[Indices], Indices]) -> None:
        self.length = length
        self._at = at
        # replaced as a whole, so that threads may share an order
        self._kept: tuple[int, list[int]] = (-1, [])

    def at(self, positions: Indices) -> Indices:
        """Return the index at each of `positions`, all of which are in range(length)."""
        return self._at(positions)

    def indices(self, start: int, stop: int) -> list[int]:
        """Return `list(whole)[start:stop]`."""
        start, stop, _ = slice(start, stop).indices(self.length)
        number, first = divmod(start, BLOCK)
        if start < stop <= (number + 1) * BLOCK:
            return self._block(number)[first : first + stop - start]
        found: list[int] = []
        for left in range(start - first, stop, BLOCK):
            found += self._block(left // BLOCK)[max(0, start - left) : stop - left]
        return found

    def _block(self, number: int) -> list[int]:
        kept, block = self._kept
        if kept != number:
            left = number * BLOCK
            block = self._at(
                np.arange(left, min(left + BLOCK, self.length), dtype=np.int64)
            ).tolist()
            self._kept = number, block
        return block


@dataclass(frozen=True)
class Permutation:
    """A random bijection of range(length): a table if that is small, else a function that needs no
    memory.

    The function is a Feistel network over the smallest power of two that holds `length`, walked
    along its cycle until it is back in range (Black and Rogaway, Ciphers with arbitrary finite
    domains, 2002). `length` is at most 2**62.
    """

    length: int
    seed: int
    epoch: int

    def at(self, positions: Indices) -> Indices:
        """Return the image of each of `positions`, all of which are in range(length)."""
        if self.length <= TABLE_LENGTH:
            return self._table[positions]
        found = self._encrypt(np.asarray(positions, np.uint64))
        outside = np.flatnonzero(found >= np.uint64(self.length))
        while len(outside):
            found[outside] = self._encrypt(found[outside])
            outside = outside[found[outside] >= np.uint64(self.length)]
        return found.astype(np.int64)

    @cached_property
    def _table(self) -> Indices:
        return np.random.default_rng((self.seed, self.epoch)).permutation(self.length)

    @cached_property
    def _keys(self) -> Words:
        return (
            np.random.SeedSequence((self.seed, self.epoch))
            .generate_state(2 * ROUNDS, np.uint64)
            .astype(np.uint64)
        )

    def _encrypt(self, values: Words) -> Words:
        """Apply a bijection of range(2**bits): the halves are changed in turn by a hash of the
        other half."""
        bits = (self.length - 1).bit_length()
        left_bits, right_bits = bits - bits // 2, bits // 2
        low = np.uint64(right_bits)
        left, right = values >> low, values & np.uint64(2**right_bits - 1)
        for key, next_key in self._keys.reshape(ROUNDS, 2):
            left = left ^ _hash(right, key, bits=left_bits)
            right = right ^ _hash(left, next_key, bits=right_bits)
        return (left << low) | right


def _hash(values: Words, key: np.uint64, *, bits: int) -> Words:
    """Return the upper bits of two multiplications with the constants of SplitMix64 (Steele, Lea
    and Flood, 2014)."""
    # arrays of uint64 wrap around without a warning
    mixed = (values + key) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0x94D049BB133111EB)
    return mixed >> np.uint64(64 - bits)


def _same(positions: Indices) -> Indices:
    return positions


def _share(whole: Order, shard: tuple[int, int], *, remainder: str | None) -> Order:
    """Return the order of one rank; it is equally long on all."""
    (_, world), count = shard, whole.length
    each, over = divmod(count, world)
    if over and remainder is None:
        raise OptionError(
            f"shard={shard}: {count} records are {each} for each of {world} ranks and {over} over; say "
            f'remainder="drop" to leave {over} out of each epoch, or remainder="pad" to deliver {world - over} more '
            "from its beginning once again"
        )
    if remainder == "pad":
        each += over > 0
    elif not each:
        raise OptionError(
            f"shard={shard}: {count} records for {world} ranks are 0 for each of them with "
            'remainder="drop"; needed a smaller world, or remainder="pad" to deliver records more '
            "than once"
        )
    return BlockOrder(each, partial(_strided, whole=whole, shard=shard))


def _strided(positions: Indices, whole: Order, *, shard: tuple[int, int]) -> Indices:
    rank, world = shard
    return whole.at((positions * world + rank) % whole.length)


def _sampled(sampler: Any, draw: tuple[int, int], *, length: int) -> Indices:
    """Return all indices of one epoch. Raise OptionError for indices that cannot be read, and for
    repetitions that were not requested."""
    # a list in torch's SubsetRandomSampler, which is iterated instead
    own = getattr(sampler, "indices", None)
    given = own(*draw, length=length) if callable(own) else sampler
    try:
        iter(given)
    except TypeError:
        raise OptionError(
            f"sampler={_name(sampler)}: must be an iterable of indices, or indices(seed, epoch, "
            "length)"
        ) from None
    drawn = _checked(given, _name(sampler), length=length)
    if getattr(sampler, "repeats", False) is not True:
        twice = len(drawn) - len(np.unique(drawn))
        if twice:
            raise OptionError(
                f"sampler={_name(sampler)}: {twice} of its {len(drawn)} indices repeat an earlier "
                "one of the same epoch; if that is intended, set `repeats = True` on the sampler"
            )
    return drawn


def _checked(given: Any, name: str, *, length: int) -> Indices:
    values = given if isinstance(given, np.ndarray) else list(given)
    drawn = np.asarray(values) if _is_plain(values) else np.asarray(_integers(values, name), object)
    if not drawn.size:
        raise OptionError(
            f"sampler={name}: gave no index at all for this epoch; must have at least one"
        )
    bad = np.flatnonzero((drawn < 0) | (drawn >= length))
    if len(bad):
        raise OptionError(
            f"sampler={name}: position {bad[0]} has index {drawn[bad[0]]}, and {len(bad)} of "
            f"{len(drawn)} are wrong; must be 0 to {length - 1}"
        )
    return drawn.astype(np.int64)


def _is_plain(values: Any) -> bool:
    """Return True if numpy alone can tell that all values are integers; it turns bools among
    integers into integers."""
    if isinstance(values, np.ndarray):
        return values.ndim == 1 and values.dtype.kind in "iu"
    return all(type(v) is int and -(2**63) <= v < 2**63 for v in values)


def _integers(values: Any, name: str) -> list[int]:
    found = []
    for position, value in enumerate(values):
        if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__") or np.ndim(value):
            raise OptionError(
                f"sampler={name}: position {position} has {value!r}; must be an integer"
            )
        found.append(operator.index(value))
    return found


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _name(sampler: Any) -> str:
    return type(sampler).__name__
