"""Operations that change the values of pixels and labels.

Parameters are numbers or distributions; `p` is the probability that an operation is applied to a
record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastfeed.augment.checks import check_chance, check_fill, check_one_of, check_size
from fastfeed.augment.parameters import (
    Distribution,
    LogUniform,
    Parameter,
    Uniform,
    check,
    check_range,
)
from fastfeed.augment.steps import Blend, Blur, Constant, Cutout, ProgramStep
from fastfeed.augment.tones import Tone
from fastfeed.errors import OptionError


@dataclass(frozen=True)
class FactorOperation:
    """A change of colours by a factor."""

    factor: Parameter
    p: float = 1.0

    def __post_init__(self) -> None:
        name = type(self).__name__
        check(self.factor, f"{name}(factor)", least=0, most=100)
        check_chance(f"{name}(p", self.p)

    def tone(self) -> Tone:
        """Return the part of a Colour step."""
        return Tone(type(self).__name__.lower(), self.factor, self.p)


@dataclass(frozen=True)
class Brightness(FactorOperation):
    """Every channel times `factor`."""


@dataclass(frozen=True)
class Contrast(FactorOperation):
    """Every channel's distance from the middle of its range (128 for uint8) times `factor`."""


@dataclass(frozen=True)
class Saturation(FactorOperation):
    """Chrominance in YIQ times `factor`: 0 is grey, 1 changes nothing."""


@dataclass(frozen=True)
class Hue:
    """Chrominance in YIQ turned by `degrees`."""

    degrees: Parameter
    p: float = 1.0

    def __post_init__(self) -> None:
        check(self.degrees, "Hue(degrees)", least=-360, most=360)
        check_chance("Hue(p", self.p)

    def tone(self) -> Tone:
        """Return the part of a Colour step."""
        return Tone("hue", self.degrees, self.p)


@dataclass(frozen=True)
class GaussianBlur:
    """Gaussian blur of `sigma` pixels."""

    sigma: Parameter
    p: float = 1.0

    def __post_init__(self) -> None:
        check(self.sigma, "GaussianBlur(sigma)", least=0, most=50)
        check_chance("GaussianBlur(p", self.p)

    def steps(self) -> tuple[ProgramStep, ...]:
        """Return the steps for the executors."""
        return (Blur(self.sigma, self.p),)


@dataclass(frozen=True)
class Erase:
    """Random erasing or cutout: `count` rectangles of `fill`, of random area (in shares of the
    image) and aspect ratio."""

    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    fill: float = 0
    count: int = 1
    p: float = 0.5

    def __post_init__(self) -> None:
        check_range("Erase(scale)", self.scale, kind=Uniform, least=0, most=1)
        check_range("Erase(ratio)", self.ratio, kind=LogUniform, least=1e-3, most=1e3)
        check_size("Erase(count", self.count)
        check_fill("Erase", self.fill)
        check_chance("Erase(p", self.p)

    def steps(self) -> tuple[ProgramStep, ...]:
        """Return the steps for the executors."""
        return (
            Cutout(Uniform(*self.scale), LogUniform(*self.ratio), self.fill, self.count, self.p),
        )


@dataclass(frozen=True)
class Normalize(Constant):
    """(value - mean) / std to float32, for each channel, in the units of the values: 0 to 255 for
    uint8."""

    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            given = getattr(self, name)
            row = tuple(given) if isinstance(given, Sequence) else (given,)
            for value in row:
                if isinstance(value, Distribution):
                    raise OptionError(
                        f"Normalize({name}={given!r}): must be a constant; Brightness and Contrast "
                        "are drawn"
                    )
                check(value, f"Normalize({name})", least=1e-9 if name == "std" else -1e9, most=1e9)
            if len(row) not in (1, 3):
                raise OptionError(
                    f"Normalize({name}={given!r}): must be one number, or one for each of 3 "
                    "channels"
                )
            object.__setattr__(self, name, tuple(map(float, row)))


@dataclass(frozen=True)
class Cast(Constant):
    """Conversion to another dtype; floats are rounded and clipped to the range of integers."""

    dtype: Any

    def __post_init__(self) -> None:
        try:
            name = np.dtype(self.dtype).name
        except (TypeError, ValueError):
            name = str(self.dtype)
        check_one_of("Cast(dtype", name, choices=("uint8", "uint16", "float16", "float32"))
        object.__setattr__(self, "dtype", name)


@dataclass(frozen=True)
class Layout(Constant):
    """Channels last ("HWC") or first ("CHW"). Only Normalize and Cast may follow "CHW"."""

    order: str

    def __post_init__(self) -> None:
        check_one_of("Layout(order", self.order, choices=("HWC", "CHW"))


@dataclass(frozen=True)
class OneHot(Constant):
    """Labels 0 to `classes` - 1 to float32 rows, of which `smoothing` is spread over all
    classes."""

    classes: int
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_size("OneHot(classes", self.classes)
        check_chance("OneHot(smoothing", self.smoothing)


@dataclass(frozen=True)
class Mixup:
    """Each record blended with the next one of its batch, images (float32 by then) and one-hot
    labels."""

    alpha: float = 0.2
    p: float = 1.0

    def __post_init__(self) -> None:
        check(self.alpha, "Mixup(alpha)", least=1e-3, most=1e3)
        check_chance("Mixup(p", self.p)

    def steps(self) -> tuple[ProgramStep, ...]:
        """Return the steps for the executors."""
        return (Blend(self.alpha, self.p),)
