"""Operations that decode images and move their pixels, by the field's names. Parameters are numbers
or distributions.

Images are arrays of (height, width, channels), red before green before blue. `p` is the probability
that a record gets an operation at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastfeed.augment.checks import (
    check_chance,
    check_fill,
    check_one_of,
    check_size,
    pair,
    sides_of,
)
from fastfeed.augment.parameters import LogUniform, Parameter, Uniform, check, check_range
from fastfeed.augment.steps import (
    Constant,
    FixedWindow,
    Mirror,
    ProgramStep,
    RandomWindow,
    Scale,
    Warp,
)
from fastfeed.errors import OptionError

INTERPOLATIONS = ("nearest", "linear", "cubic")
CENTRE = 0.5


@dataclass(frozen=True)
class Decode(Constant):
    """JPEG or PNG bytes to uint8 (height, width, 3), or 1 channel for "gray", turned as in EXIF.

    The header of an image of more than `max_pixels` raises an error before memory is allocated.
    """

    channels: str = "rgb"
    max_pixels: int = 100_000_000

    def __post_init__(self) -> None:
        check_one_of("Decode(channels", self.channels, choices=("rgb", "gray"))
        check_size("Decode(max_pixels", self.max_pixels)

    @property
    def depth(self) -> int:
        """Number of channels."""
        return 3 if self.channels == "rgb" else 1


@dataclass(frozen=True)
class Resize:
    """Resize to (height, width), to one number for both, or to a `shorter` side, which keeps the
    aspect ratio."""

    size: int | tuple[int, int] | None = None
    shorter: int | None = None
    interpolation: str = "linear"
    antialias: bool = False

    def __post_init__(self) -> None:
        if (self.size is None) == (self.shorter is None):
            raise OptionError(f"{self!r}: needs either size= or shorter=")
        if self.size is not None:
            object.__setattr__(self, "size", sides_of("Resize", self.size))
        else:
            check_size("Resize(shorter", self.shorter)
        check_one_of("Resize(interpolation", self.interpolation, choices=INTERPOLATIONS)

    def steps(self) -> tuple[ProgramStep, ...]:
        """Return the steps for the executors."""
        return (_scale(self.size or (0, 0), self, shorter=self.shorter or 0),)


@dataclass(frozen=True)
class RandomResizedCrop:
    """A window of random area (`scale`, shares of the image) and aspect ratio (width / height),
    made `size` large."""

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: str = "linear"
    antialias: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", sides_of("RandomResizedCrop", self.size))
        check_range("RandomResizedCrop(scale)", self.scale, kind=Uniform, least=1e-6, most=1.0)
        check_range("RandomResizedCrop(ratio)", self.ratio, kind=LogUniform, least=1e-3, most=1e3)
        check_one_of("RandomResizedCrop(interpolation", self.interpolation, choices=INTERPOLATIONS)

    def steps(self) -> tuple[ProgramStep, ...]:
        """Return the steps for the executors."""
        return RandomWindow((self.scale[0], self.scale[1]), (self.ratio[0], self.ratio[1])), _scale(
            self.size, self
        )


@dataclass(frozen=True)
class Crop:
    """A window of `size` at a relative place: 0 is the upper or left edge, 1 the lower or right
    one, 0.5 the centre.

    If the image is smaller, the rest is `fill`. `Crop(224, y=Uniform(0, 1), x=Uniform(0, 1))` is a
    random crop.
    """

    size: int | tuple[int, int]
    y: Parameter = CENTRE
    x: Parameter = CENTRE
    fill: float = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", sides_of("Crop", self.size))
        for name in ("y", "x"):
            check(getattr(self, name), f"Crop({name})", least=0, most=1)
        check_fill("Crop", self.fill)

    def steps(self) -> tuple[ProgramStep, ...]:
        """Return the steps for the executors."""
        return (FixedWindow(*pair(self.size), self.y, self.x, self.fill),)


@dataclass(frozen=True)
class Flip:
    """Left to right with probability `horizontal`, upside down with probability `vertical`."""

    horizontal: float = 0.5
    vertical: float = 0.0

    def __post_init__(self) -> None:
        check_chance("Flip(horizontal", self.horizontal)
        check_chance("Flip(vertical", self.vertical)

    def steps(self) -> tuple[ProgramStep, ...]:
        """Return the steps for the executors."""
        return (Mirror(self.horizontal, self.vertical),)


@dataclass(frozen=True)
class Rotate:
    """A turn about the centre, counter-clockwise, on the same canvas; pixels from outside are
    `fill`."""

    degrees: Parameter
    fill: float = 0
    interpolation: str = "linear"
    p: float = 1.0

    def __post_init__(self) -> None:
        check(self.degrees, "Rotate(degrees)", least=-360, most=360)
        _warped("Rotate", self)

    def steps(self) -> tuple[ProgramStep, ...]:
        """Return the steps for the executors."""
        return (Warp(self.degrees, (0.0, 0.0), 1.0, 0.0, self.fill, self.interpolation, self.p),)


@dataclass(frozen=True)
class Affine:
    """A turn (degrees, counter-clockwise), scale (2: twice as large) and shear (degrees) about the
    centre, and a shift (down, right, in shares of the sides), on the same canvas."""

    degrees: Parameter = 0.0
    shift: tuple[Parameter, Parameter] = (0.0, 0.0)
    scale: Parameter = 1.0
    shear: Parameter = 0.0
    fill: float = 0
    interpolation: str = "linear"
    p: float = 1.0

    def __post_init__(self) -> None:
        check(self.degrees, "Affine(degrees)", least=-360, most=360)
        check(self.scale, "Affine(scale)", least=1e-3, most=1e3)
        check(self.shear, "Affine(shear)", least=-80, most=80)
        if not isinstance(self.shift, Sequence) or len(self.shift) != 2:
            raise OptionError(f"Affine(shift={self.shift!r}): must be two, down and right")
        for part in self.shift:
            check(part, "Affine(shift)", least=-1, most=1)
        _warped("Affine", self)

    def steps(self) -> tuple[ProgramStep, ...]:
        """Return the steps for the executors."""
        shift = (self.shift[0], self.shift[1])
        return (
            Warp(
                self.degrees, shift, self.scale, self.shear, self.fill, self.interpolation, self.p
            ),
        )


def _scale(size: Any, op: Resize | RandomResizedCrop, *, shorter: int = 0) -> Scale:
    return Scale(*pair(size), shorter, op.interpolation, op.antialias)


def _warped(name: str, op: Rotate | Affine) -> None:
    check_fill(name, op.fill)
    check_one_of(f"{name}(interpolation", op.interpolation, choices=INTERPOLATIONS)
    check_chance(f"{name}(p", op.p)
