"""The order of an epoch, computed on demand and never stored whole.

An `Order` is a pure function of (seed, epoch, recipe): any part of it can be computed at any time
and is always the same. Therefore ranks agree without communication, and a run can resume in the
middle of an epoch.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from fastfeed.errors import OptionError

Indices = npt.NDArray[np.int64]
UInts = npt.NDArray[np.uint64]

# A table of 8 MB is built in 15 ms and is read faster than the network is computed.
TABLE_LENGTH = 2**20
# Positions computed at a time: spreads the overhead of a numpy call over all of them.
BLOCK = 4096
# Changes of both halves. With a single one, neighbours stay related, which a chi-square test
# detects.
ROUNDS = 3


@dataclass(frozen=True)
class Shard:
    """The share of one rank: of an order that all ranks have, it takes the positions rank,
    rank + world and so on, and all ranks take equally many.

    `remainder` says what happens to records that cannot be divided evenly: "drop" leaves out the
    last ones of the epoch's order, "pad" continues with its first ones, which are then delivered
    twice. Raise OptionError for a rank that is not in the world.
    """

    rank: int
    world: int
    remainder: str | None = None

    def __post_init__(self) -> None:
        given = (self.rank, self.world)
        if not all(map(is_integer, given)):
            raise OptionError(
                f"shard must be two integers (rank, world), such as (0, 8), got {given!r}"
            )
        if self.world < 1:
            raise OptionError(f"the world of shard=(rank, world) must be >= 1, got {given!r}")
        if not 0 <= self.rank < self.world:
            raise OptionError(
                f"the rank of shard=(rank, world) must be 0 to {self.world - 1} in a world of "
                f"{self.world}, got {given!r}"
            )
        if self.remainder not in (None, "drop", "pad"):
            raise OptionError(
                f'remainder of Shard must be None, "drop" or "pad", got {self.remainder!r}'
            )
        object.__setattr__(self, "rank", int(self.rank))
        object.__setattr__(self, "world", int(self.world))

    @staticmethod
    def of(given: Any) -> Shard:
        """Return the shard in (rank, world); raise OptionError for anything else."""
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            raise OptionError(
                f"shard must be two integers (rank, world), such as (0, 8), got {given!r}; "
                "Shard(rank, world, remainder=...) says what to do with a remainder"
            )
        return Shard(*given)

    @property
    def place(self) -> tuple[int, int]:
        """The (rank, world)."""
        return self.rank, self.world


@dataclass(frozen=True)
class Recipe:
    """Rules for the order of an epoch.

    With a sampler that has a `group_size`, all that `Shard` says of records holds for groups of
    consecutive records. Raise OptionError for a contradictory combination.
    """

    shuffled: bool = False
    # has indices(seed, epoch, length), or is an iterable of indices that is iterated in each epoch.
    # With `group_size`, so many consecutive indices stay together: a rank takes whole groups.
    sampler: Any = None
    shard: Shard | None = None

    def __post_init__(self) -> None:
        if self.sampler is not None and self.shuffled:
            raise OptionError("a sampler has its own order: leave out either shuffle= or sampler=")
        if hasattr(self.sampler, "__next__"):
            raise OptionError(
                "sampler must be iterable again in every epoch, got the iterator "
                f"{_name(self.sampler)}; pass a list, or the object that makes the iterator"
            )
        if not is_integer(self.group_size) or self.group_size < 1:
            raise OptionError(
                f"group_size of the sampler {_name(self.sampler)} (consecutive indices that stay "
                f"together) must be an integer >= 1, got {self.group_size!r}"
            )

    @property
    def group_size(self) -> Any:
        """The number of consecutive positions that no division among ranks separates."""
        return getattr(self.sampler, "group_size", 1)


def order_of(
    length: int,
    *,
    seed: int,
    epoch: int,
    recipe: Recipe,
    base: Order | None = None,
    rest: Sequence[Sequence[int]] | None = None,
) -> Order:
    """Return the order of one epoch over `length` records, or over those of `base`.

    `base` is an order already, such as that of a mix. `rest` are ranges of positions; all others
    are left out. Raise OptionError if a sampler yields wrong indices, or if the records cannot be
    divided among the ranks.
    """
    if base is not None and recipe.sampler is not None:
        raise OptionError(
            "a mix has its own order: leave out sampler=, or sample from one plain source"
        )
    if base is not None:
        whole = base
    elif recipe.sampler is not None:
        drawn = _sampled(recipe.sampler, (seed, epoch), length=length)
        if len(drawn) % recipe.group_size:
            raise OptionError(
                f"sampler {_name(recipe.sampler)} gave {len(drawn)} indices, which are no whole "
                f"number of groups of group_size={recipe.group_size}"
            )
        whole = Order(len(drawn), drawn.__getitem__)
    else:
        whole = Order(length, Permutation(length, seed, epoch).at if recipe.shuffled else _identity)
    if rest is not None:
        if (end := rest[-1][1]) > whole.length:
            raise OptionError(f"the state is damaged: {end} of {whole.length} records are left")
        places = np.concatenate([np.arange(*part) for part in rest])
        whole = Order(len(places), partial(_chosen, whole=whole, places=places))
    if recipe.shard is None:
        return whole
    return _sharded(whole, recipe.shard, group=int(recipe.group_size))


class Order:
    """The indices of one epoch by position, as a function of positions. It evaluates whole blocks
    and caches the last one."""

    def __init__(self, length: int, at: Callable[[Indices], Indices]) -> None:
        self.length = length
        self._at = at
        # replaced in one assignment, so that threads may share an order
        self._kept: tuple[int, list[int]] = (-1, [])

    def at(self, positions: Indices) -> Indices:
        """Return the index at each of `positions`, all of which are in range(length)."""
        return self._at(positions)

    def indices(self, start: int, stop: int) -> list[int]:
        """Return what `list(whole)[start:stop]` would give."""
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
    """A random bijection of range(length): a table if that is small, else a function.

    The function needs no memory. It is a Feistel network over the smallest power of two that holds
    `length`. It is applied until the result is in range: cycle walking (Black and Rogaway, Ciphers
    with arbitrary finite domains, 2002). `length` is at most 2**62.
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
    def _keys(self) -> UInts:
        return (
            np.random.SeedSequence((self.seed, self.epoch))
            .generate_state(2 * ROUNDS, np.uint64)
            .astype(np.uint64)
        )

    def _encrypt(self, values: UInts) -> UInts:
        """Apply a bijection of range(2**bits): change each half in turn by a hash of the other."""
        bits = (self.length - 1).bit_length()
        left_bits, right_bits = bits - bits // 2, bits // 2
        low = np.uint64(right_bits)
        left, right = values >> low, values & np.uint64(2**right_bits - 1)
        for key, next_key in self._keys.reshape(ROUNDS, 2):
            left = left ^ _hash(right, key, bits=left_bits)
            right = right ^ _hash(left, next_key, bits=right_bits)
        return (left << low) | right


def _hash(values: UInts, key: np.uint64, *, bits: int) -> UInts:
    """Return the upper bits of two multiplications by the constants of SplitMix64.

    See Steele, Lea and Flood, Fast splittable pseudorandom number generators (2014).
    """
    # arrays of uint64 wrap around without a warning
    mixed = (values + key) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0x94D049BB133111EB)
    return mixed >> np.uint64(64 - bits)


def _identity(positions: Indices) -> Indices:
    return positions


def _sharded(whole: Order, shard: Shard, *, group: int) -> Order:
    """Return the order of one rank; all ranks have the same length."""
    count, world, place = whole.length // group, shard.world, shard.place
    things = "records" if group == 1 else f"groups of {group} records"
    each, over = divmod(count, world)
    if over and shard.remainder is None:
        raise OptionError(
            f"shard={place}: {count} {things} are {each} for each of {world} ranks and {over} "
            f'over; Shard({shard.rank}, {world}, remainder="drop") leaves {over} out of each '
            f'epoch, remainder="pad" delivers {world - over} more from its beginning a second time'
        )
    each = rank_length(count, world, padded=shard.remainder == "pad")
    if not each:
        raise OptionError(
            f"shard={place}: {count} {things} for {world} ranks are 0 for each of them with "
            f'remainder="drop"; use fewer ranks, or Shard({shard.rank}, {world}, remainder="pad"), '
            f"which delivers {things} more than once"
        )
    return Order(each * group, partial(_strided, whole=whole, shard=place, group=group))


def _strided(positions: Indices, whole: Order, *, shard: tuple[int, int], group: int) -> Indices:
    return whole.at(places_of_rank(positions, shard, group=group, length=whole.length))


def rank_length(count: int, world: int, *, padded: bool) -> int:
    """Return how many of `count` records or groups each rank gets."""
    return -(-count // world) if padded else count // world


def places_of_rank(
    positions: Indices, shard: tuple[int, int], *, group: int, length: int
) -> Indices:
    """Return where the positions in a rank's order are in the order of all ranks, of `length`."""
    rank, world = shard
    if group == 1:
        return (positions * world + rank) % length
    number, place = np.divmod(positions, group)
    return ((number * world + rank) * group + place) % length


def _chosen(positions: Indices, whole: Order, *, places: Indices) -> Indices:
    return whole.at(places[positions])


def _sampled(sampler: Any, draw: tuple[int, int], *, length: int) -> Indices:
    """Return all indices that the sampler gives for one epoch.

    `draw` is (seed, epoch). Raise OptionError for invalid indices, and for repetitions unless the
    sampler sets `repeats`.
    """
    # torch's SubsetRandomSampler has a list in `indices`; it is iterated instead
    # a tensor has a method `indices` of its own
    own = None if hasattr(sampler, "dtype") else getattr(sampler, "indices", None)
    given = own(*draw, length=length) if callable(own) else _iterable(sampler, draw)
    try:
        # once: it may count how often it is iterated over
        given = given if isinstance(given, np.ndarray) and given.ndim else iter(given)
    except TypeError:
        raise OptionError(
            "sampler must be an iterable of indices, or have indices(seed, epoch, length), got "
            f"{_name(sampler)}"
        ) from None
    drawn = _checked(given, _name(sampler), length=length)
    if getattr(sampler, "repeats", getattr(sampler, "replacement", False)) is not True:
        twice = len(drawn) - len(np.unique(drawn))
        if twice:
            raise OptionError(
                f"sampler {_name(sampler)} repeats {twice} of its {len(drawn)} indices within one "
                "epoch; if that is intended, set `repeats = True` on the sampler, which may be any "
                "object with indices(seed, epoch, length)"
            )
    return drawn


def _iterable(sampler: Any, draw: tuple[int, int]) -> Any:
    """Return the indices of an epoch, the same each time. A sampler of torch draws from a generator
    for this epoch, which begins like its own, or by the seed."""
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(draw[1])
    torch: Any = sys.modules.get("torch")
    given = getattr(sampler, "generator", sampler)
    own = torch is not None and isinstance(sampler, torch.utils.data.Sampler)
    if own and isinstance(given, (type(None), torch.Generator)):
        sampler, generator = copy(sampler), torch.Generator()
        root = draw[0] if given is None else given.initial_seed()
        generator.manual_seed(int(np.random.SeedSequence((root, draw[1])).generate_state(1)[0]))
        if given is not None and not draw[1]:
            generator.set_state(given.get_state())
        sampler.generator = generator
    return np.asarray(sampler) if hasattr(sampler, "dtype") else sampler


def _checked(given: Any, name: str, *, length: int) -> Indices:
    plain = isinstance(given, np.ndarray) and given.ndim == 1 and given.dtype.kind in "iu"
    drawn = given if plain else _integers(list(given), name)
    if not drawn.size:
        raise OptionError(
            f"sampler {name} must give at least one index for each epoch, it gave none"
        )
    bad = np.flatnonzero((drawn < 0) | (drawn >= length))
    if len(bad):
        raise OptionError(
            f"sampler {name} must give indices from 0 to {length - 1}, got {drawn[bad[0]]} at "
            f"position {bad[0]}; {len(bad)} of {len(drawn)} are out of range"
        )
    return drawn.astype(np.int64)


def _integers(values: list[Any], name: str) -> npt.NDArray[Any]:
    """Return integers of any size as an array. Raise OptionError for any other value."""
    for position, value in enumerate(values):
        if type(value) is int:
            continue
        if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__") or np.ndim(value):
            raise OptionError(
                f"sampler {name} must give integers, got {value!r} at position {position}. Lists "
                "of indices, one for each batch, are a source: FeedRunner(index_lists, "
                "records=False, transform=batch_of)"
            )
    numbers = list(map(operator.index, values))
    try:
        return np.array(numbers, np.int64)
    except OverflowError:
        return np.array(numbers, object)


def is_integer(value: Any) -> bool:
    """Return True for an integer of any type but bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _name(sampler: Any) -> str:
    return type(sampler).__name__
