"""Parameters of operations: a number, or a distribution from which a number is drawn for each
record. Draws depend only on the record, so every producer draws the same ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeAlias

from fastfeed.errors import OptionError

MASK_64_BITS = 2**64 - 1
# splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014)
SPLITMIX_INCREMENT = 0x9E3779B97F4A7C15
SPLITMIX_FACTOR_1, SPLITMIX_FACTOR_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def key_of(parts: Iterable[int]) -> int:
    """Return 64 bits that stand for a record, such as (seed, epoch, index)."""
    key = 0
    for part in parts:
        bits = ((key ^ (part & MASK_64_BITS)) + SPLITMIX_INCREMENT) & MASK_64_BITS
        bits = ((bits ^ (bits >> 30)) * SPLITMIX_FACTOR_1) & MASK_64_BITS
        bits = ((bits ^ (bits >> 27)) * SPLITMIX_FACTOR_2) & MASK_64_BITS
        key = bits ^ (bits >> 31)
    return key


class Draws:
    """A stream of numbers in [0, 1) for one record. Not for cryptography."""

    __slots__ = ("_state",)

    def __init__(self, key: int) -> None:
        self._state = key

    def next(self) -> float:
        """Return the next number, with 53 bits."""
        bits = self._state = (self._state + SPLITMIX_INCREMENT) & MASK_64_BITS
        # written out again: a call would cost more than the computation
        bits = ((bits ^ (bits >> 30)) * SPLITMIX_FACTOR_1) & MASK_64_BITS
        bits = ((bits ^ (bits >> 27)) * SPLITMIX_FACTOR_2) & MASK_64_BITS
        return ((bits ^ (bits >> 31)) >> 11) * 2.0**-53


@dataclass(frozen=True)
class Uniform:
    """Any number from `low` to `high`."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not _are_numbers(self.low, self.high) or self.low > self.high:
            raise OptionError(f"{self!r}: must be finite numbers, with low <= high")

    def draw(self, draws: Draws) -> float:
        """Draw one number."""
        return self.low + (self.high - self.low) * draws.next()


class LogUniform(Uniform):
    """A number from `low` to `high` whose logarithm is uniform: half of something as often as
    twice."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low <= 0:
            raise OptionError(f"{self!r}: must be greater than 0")

    def draw(self, draws: Draws) -> float:
        """Draw one number."""
        low, high = math.log(self.low), math.log(self.high)
        return math.exp(low + (high - low) * draws.next())


@dataclass(frozen=True)
class Choice:
    """One of `values`, each as often as the others."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        values = tuple(self.values) if isinstance(self.values, Iterable) else ()
        if not values or not _are_numbers(*values):
            raise OptionError(f"{self!r}: must be finite numbers, as in Choice((0, 90))")
        object.__setattr__(self, "values", values)

    def draw(self, draws: Draws) -> float:
        """Draw one number."""
        return self.values[int(draws.next() * len(self.values))]


Parameter: TypeAlias = float | Uniform | Choice


def drawn(parameter: Parameter, draws: Draws) -> float:
    """Return the number for one record; a constant draws nothing."""
    return parameter.draw(draws) if isinstance(parameter, (Uniform, Choice)) else float(parameter)


# What an argument may be: a function of its name, as in "Crop(y", and its value. It returns the
# value in its final form, or raises OptionError.
Rule: TypeAlias = Callable[[str, Any], Any]


def within(least: float, most: float, *, constant: bool = False) -> Rule:
    """Return the rule of a number within [least, most], which may be drawn unless `constant`."""
    kinds = "a constant" if constant else "a number, or Uniform, LogUniform or Choice,"

    def checked(name: str, value: Any) -> Any:
        ends: Any = (value,) if _are_numbers(value) else ()
        if isinstance(value, (Uniform, Choice)) and not constant:
            ends = (value.low, value.high) if isinstance(value, Uniform) else value.values
        if ends and least <= min(ends) and max(ends) <= most:
            return value
        raise OptionError(f"{name}={value!r}): must be {kinds} from {least:g} to {most:g}")

    return checked


def span(least: float, most: float) -> Rule:
    """Return the rule of two numbers in order, within [least, most]."""
    rule = within(least, most, constant=True)

    def checked(name: str, value: Any) -> tuple[float, float]:
        pair = isinstance(value, (tuple, list)) and len(value) == 2
        if not pair or rule(name, value[0]) > rule(name, value[1]):
            raise OptionError(f"{name}={value!r}): must be two numbers, (least, most)")
        return value[0], value[1]

    return checked


def one_of(*choices: str) -> Rule:
    """Return the rule of one of `choices`."""

    def checked(name: str, value: Any) -> str:
        if value not in choices:
            raise OptionError(f"{name}={value!r}): must be one of {', '.join(map(repr, choices))}")
        return str(value)

    return checked


def integer(name: str, value: Any) -> int:
    """Return a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"{name}={value!r}): must be an integer >= 1")
    return value


def sides(name: str, value: Any) -> tuple[int, int]:
    """Return (height, width), of one number for both or of two."""
    given = (value, value) if isinstance(value, int) else value
    if not isinstance(given, Sequence) or len(given) != 2:
        raise OptionError(f"{name}={value!r}): must be (height, width), or one number for both")
    return integer(name, given[0]), integer(name, given[1])


def _are_numbers(*values: object) -> bool:
    return all(isinstance(v, Real) and not isinstance(v, bool) and math.isfinite(v) for v in values)
