"""Parameters of operations: a number, or a distribution from which a number is drawn for each
record."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from statistics import NormalDist
from typing import TypeAlias

from fastfeed.augment.draws import Draws
from fastfeed.errors import OptionError


@dataclass(frozen=True)
class Interval:
    """The numbers from `low` to `high`."""

    low: float
    high: float

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest number."""
        return self.low, self.high


@dataclass(frozen=True)
class Uniform(Interval):
    """Any number from `low` to `high`."""

    def __post_init__(self) -> None:
        _refuse_unless(
            _finite(self.low, self.high) and self.low <= self.high,
            self,
            must_be="finite, with low <= high",
        )

    def draw(self, draws: Draws) -> float:
        """Draw one number."""
        return self.low + (self.high - self.low) * draws.next()


@dataclass(frozen=True)
class LogUniform(Interval):
    """A number from `low` to `high` whose logarithm is uniform: half of something as often as
    twice."""

    def __post_init__(self) -> None:
        _refuse_unless(
            _finite(self.low, self.high) and 0 < self.low <= self.high,
            self,
            must_be="finite, with 0 < low <= high",
        )

    def draw(self, draws: Draws) -> float:
        """Draw one number."""
        return math.exp(
            math.log(self.low) + (math.log(self.high) - math.log(self.low)) * draws.next()
        )


@dataclass(frozen=True)
class Normal:
    """A normally distributed number, at most four standard deviations from the mean."""

    mean: float
    std: float

    def __post_init__(self) -> None:
        _refuse_unless(
            _finite(self.mean, self.std) and self.std >= 0, self, must_be="finite, with std >= 0"
        )

    def draw(self, draws: Draws) -> float:
        """Draw one number."""
        z = NormalDist().inv_cdf(min(max(draws.next(), 1e-12), 1 - 1e-12))
        return self.mean + self.std * min(max(z, -4.0), 4.0)

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest number."""
        return self.mean - 4 * self.std, self.mean + 4 * self.std


@dataclass(frozen=True)
class Choice:
    """One of `values`, each as often as the others."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        _refuse_unless(
            isinstance(self.values, Iterable),
            self,
            must_be="several numbers, as in Choice((0, 90))",
        )
        object.__setattr__(self, "values", tuple(self.values))
        _refuse_unless(
            bool(self.values) and _finite(*self.values), self, must_be="at least one finite number"
        )

    def draw(self, draws: Draws) -> float:
        """Draw one number."""
        return self.values[int(draws.next() * len(self.values))]

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest number."""
        return min(self.values), max(self.values)


Distribution: TypeAlias = Uniform | LogUniform | Normal | Choice
Parameter: TypeAlias = float | Distribution


def drawn(parameter: Parameter, draws: Draws) -> float:
    """Return the number for one record; a constant draws nothing."""
    return parameter.draw(draws) if isinstance(parameter, Distribution) else float(parameter)


def bounds(parameter: Parameter) -> tuple[float, float]:
    """Return the least and the greatest number that can be drawn."""
    return (
        parameter.bounds
        if isinstance(parameter, Distribution)
        else (float(parameter), float(parameter))
    )


def check(
    parameter: object, name: str, *, least: float = -math.inf, most: float = math.inf
) -> None:
    """Raise OptionError unless it is a number or a distribution within [least, most]."""
    number = (
        isinstance(parameter, Real) and not isinstance(parameter, bool) and math.isfinite(parameter)
    )
    if not number and not isinstance(parameter, Distribution):
        raise OptionError(
            f"{name}={parameter!r}: must be a number, or Uniform, LogUniform, Normal or Choice of "
            "numbers"
        )
    low, high = bounds(parameter)  # type: ignore[arg-type]
    if low < least or high > most:
        raise OptionError(
            f"{name}={parameter!r}: must be numbers from {least:g} to {most:g}, it can be {low:g} "
            f"to {high:g}"
        )


def check_range(
    name: str, given: object, *, kind: type[Uniform] | type[LogUniform], least: float, most: float
) -> None:
    """Raise OptionError unless it is a pair of numbers for `kind`, within [least, most]."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence) or len(given) != 2:
        raise OptionError(f"{name}={given!r}: must be two numbers, (least, most)")
    check(kind(given[0], given[1]), name, least=least, most=most)


def _finite(*numbers: object) -> bool:
    return all(
        isinstance(n, Real) and not isinstance(n, bool) and math.isfinite(n) for n in numbers
    )


def _refuse_unless(right: bool, what: object, *, must_be: str) -> None:
    if not right:
        raise OptionError(f"{what!r}: must be {must_be}")
