"""The operations, and the numbers of each for one record.

Images are arrays of (height, width, channels), red before green before blue. A parameter is a
number or a distribution; `p` is the probability that a record gets the operation at all.

A record's plan is a flat row of numbers, a fixed count for each operation. Coordinates are in
pixels of the image that an operation gets, (0, 0) its upper left corner: the centre of the first
pixel is at (0.5, 0.5).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from fastfeed.augment.parameters import (
    Draws,
    LogUniform,
    Parameter,
    Rule,
    Uniform,
    drawn,
    integer,
    one_of,
    sides,
    span,
    within,
)
from fastfeed.errors import OptionError, SpecError

Size = tuple[int, int]  # height, width
Planned = tuple[Sequence[float], Size]
MAX_LEVEL = 255  # of a pixel
MAX_WINDOW_DRAWS = 10  # as in torchvision
# Half the window of a truncated Gaussian: the rest is below half a level.
BLUR_RADIUS_SIGMAS = 3.0
IDENTITY_WARP = (1, 0, 0, 0, 1, 0)
# Tones are matrices over (red, green, blue, 1), where 1 is the range of the levels. Hue turns the
# plane of the two chrominance axes of YIQ, and saturation scales it, as in DALI (HSV's hexagon is
# another convention). The axes: FCC NTSC standard, 1953.
IDENTITY_MATRIX = (1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0)  # 3 x 4, row by row
CONTRAST_MIDDLE = 128 / 255  # the level that contrast keeps
TO_YIQ = np.array(((0.299, 0.587, 0.114), (0.596, -0.274, -0.321), (0.211, -0.523, 0.311)))
FROM_YIQ = np.linalg.inv(TO_YIQ)
# by an angle of the hue: a constant part, and the factors of its cosine and its sine
LUMA, CHROMA = FROM_YIQ[:, :1] @ TO_YIQ[:1], FROM_YIQ[:, 1:] @ TO_YIQ[1:]
QUARTER_TURN = FROM_YIQ[:, 1:] @ np.array(((0, -1), (1, 0))) @ TO_YIQ[1:]
CHANCE, LEVEL = within(0, 1, constant=True), within(0, MAX_LEVEL, constant=True)
RATIO = span(1e-3, 1e3)  # width / height


@dataclass(frozen=True)
class Operation:
    """One operation, the same for every record unless it has `numbers`.

    An operation may be followed by those of a later `rank`, and of its own if they are PIXELS.
    """

    DECODE, PIXELS, NORMALIZE, CAST, LAYOUT = range(5)
    rank: ClassVar[int] = PIXELS
    numbers: ClassVar[int] = 0  # the count of its numbers in a plan
    rules: ClassVar[Mapping[str, Rule]] = {}  # of its arguments

    def __post_init__(self) -> None:
        for name, rule in self.rules.items():
            checked = rule(f"{type(self).__name__}({name}", getattr(self, name))
            object.__setattr__(self, name, checked)

    def plan(self, draws: Draws, size: Size) -> Planned:
        """Return its numbers for an image of `size`, and the size of the result."""
        return (), size


@dataclass(frozen=True)
class Decode(Operation):
    """JPEG or PNG bytes to (height, width, 3), or 1 channel for "gray", turned as in EXIF.

    The header of an image of more than `max_pixels` raises an error before memory is allocated.
    """

    channels: str = "rgb"
    max_pixels: int = 100_000_000
    rank = Operation.DECODE
    rules: ClassVar = {"channels": one_of("rgb", "gray"), "max_pixels": integer}

    @property
    def depth(self) -> int:
        """Number of channels."""
        return 3 if self.channels == "rgb" else 1


@dataclass(frozen=True)
class Resize(Operation):
    """Resize to (height, width), to one number for both, or to a `shorter` side, which keeps the
    aspect ratio: (height, width).

    Sampled linearly at pixel centres; `antialias` filters where the image gets smaller.
    """

    size: int | tuple[int, int] | None = None
    shorter: int | None = None
    antialias: bool = False
    numbers = 2

    def __post_init__(self) -> None:
        if (self.size is None) == (self.shorter is None):
            raise OptionError(f"{self!r}: needs either size= or shorter=")
        if self.size is not None:
            object.__setattr__(self, "size", sides("Resize(size", self.size))
        else:
            integer("Resize(shorter", self.shorter)

    def plan(self, draws: Draws, size: Size) -> Planned:
        """Return the size, without a draw."""
        new: Any = self.size
        if self.shorter is not None:
            short = min(size)
            new = tuple(max(1, math.floor(side * self.shorter / short + 0.5)) for side in size)
        return new, new


@dataclass(frozen=True)
class RandomResizedCrop(Operation):
    """A window of random area (`scale`, shares of the image) and aspect ratio (width / height),
    made `size` large: (y, x, height, width) of the window, within the image."""

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    antialias: bool = False
    numbers = 4
    rules: ClassVar = {"size": sides, "scale": span(1e-6, 1), "ratio": RATIO}

    def plan(self, draws: Draws, size: Size) -> Planned:
        """Draw a window like torchvision: after ten windows that do not fit, return the largest
        centred window of an allowed ratio."""
        high, wide = size
        new: Any = self.size
        min_area, area_range, min_log_ratio, log_ratio_range = self._draw_ranges
        for _ in range(MAX_WINDOW_DRAWS):
            # Uniform and LogUniform are inlined: their calls took half the time
            area = high * wide * (min_area + area_range * draws.next())
            ratio = math.exp(min_log_ratio + log_ratio_range * draws.next())
            width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < width <= wide and 0 < height <= high:
                y = int(draws.next() * (high - height + 1))
                return (y, int(draws.next() * (wide - width + 1)), height, width), new
        ratio = min(max(wide / high, self.ratio[0]), self.ratio[1])
        width = max(1, min(wide, round(high * ratio)))
        height = max(1, min(high, round(wide / ratio)))
        return ((high - height) // 2, (wide - width) // 2, height, width), new

    @cached_property
    def _draw_ranges(self) -> tuple[float, float, float, float]:
        (low, high), (narrow, wide) = self.scale, map(math.log, self.ratio)
        return low, high - low, narrow, wide - narrow


@dataclass(frozen=True)
class Crop(Operation):
    """A window of `size` at a relative place: 0 is the upper or left edge, 1 the lower or right
    one, 0.5 the centre: (y, x, height, width).

    If the image is smaller, the rest is `fill`. `Crop(224, y=Uniform(0, 1), x=Uniform(0, 1))` is a
    random crop.
    """

    size: int | tuple[int, int]
    y: Parameter = 0.5
    x: Parameter = 0.5
    fill: float = 0
    numbers = 4
    rules: ClassVar = {"size": sides, "y": within(0, 1), "x": within(0, 1), "fill": LEVEL}

    def plan(self, draws: Draws, size: Size) -> Planned:
        """Return the window. In an image that is smaller, its place is computed alike."""
        new: Any = self.size
        y = math.floor(drawn(self.y, draws) * (size[0] - new[0]) + 0.5)
        x = math.floor(drawn(self.x, draws) * (size[1] - new[1]) + 0.5)
        return (y, x, *new), new


@dataclass(frozen=True)
class Flip(Operation):
    """Left to right with probability `horizontal`, upside down with probability `vertical`: each 0
    or 1."""

    horizontal: float = 0.5
    vertical: float = 0.0
    numbers = 2
    rules: ClassVar = {"horizontal": CHANCE, "vertical": CHANCE}

    def plan(self, draws: Draws, size: Size) -> Planned:
        """Draw each flip with its own probability."""
        return (float(draws.next() < self.horizontal), float(draws.next() < self.vertical)), size


def _shift(name: str, value: Any) -> tuple[Parameter, Parameter]:
    rule = within(-1, 1)
    if not isinstance(value, Sequence) or len(value) != 2:
        raise OptionError(f"{name}={value!r}): must be two, down and right")
    return rule(name, value[0]), rule(name, value[1])


@dataclass(frozen=True)
class Affine(Operation):
    """A turn (degrees, counter-clockwise), scale (2: twice as large) and shear (degrees) about the
    centre, and a shift (down, right, in shares of the sides), on the same canvas; pixels from
    outside are `fill`.

    The 2 x 3 matrix, row by row, maps a place in the new image to its place in the old one.
    """

    degrees: Parameter = 0.0
    shift: tuple[Parameter, Parameter] = (0.0, 0.0)
    scale: Parameter = 1.0
    shear: Parameter = 0.0
    fill: float = 0
    p: float = 1.0
    numbers = 6
    rules: ClassVar = {
        "degrees": within(-360, 360),
        "shift": _shift,
        "scale": within(1e-3, 1e3),
        "shear": within(-80, 80),
        "fill": LEVEL,
        "p": CHANCE,
    }

    def plan(self, draws: Draws, size: Size) -> Planned:
        """Return the inverse of: shear, scale, turn counter-clockwise, shift."""
        high, wide = size
        turn, down, right = (drawn(p, draws) for p in (self.degrees, *self.shift))
        scale, shear = drawn(self.scale, draws), drawn(self.shear, draws)
        if draws.next() >= self.p:
            return IDENTITY_WARP, size
        cos, sin = math.cos(math.radians(turn)), math.sin(math.radians(turn))
        slant = math.tan(math.radians(shear))
        # Forward, x to the right and y down: p' = c + shift + M (p - c), M = [[a, b], [d, e]].
        a, b = scale * cos, scale * (cos * slant + sin)
        d, e = -scale * sin, scale * (cos - sin * slant)
        det = a * e - b * d
        ia, ib, id_, ie = e / det, -b / det, -d / det, a / det
        cx, cy = wide / 2, high / 2
        ox, oy = cx + right * wide, cy + down * high
        return (ia, ib, cx - ia * ox - ib * oy, id_, ie, cy - id_ * ox - ie * oy), size


@dataclass(frozen=True)
class FactorTone(Operation):
    """A change of colours by a factor."""

    factor: Parameter
    p: float = 1.0
    rules: ClassVar = {"factor": within(0, 100), "p": CHANCE}


class Brightness(FactorTone):
    """Every channel times `factor`."""


class Contrast(FactorTone):
    """Every channel's distance from the middle of its range (128) times `factor`."""


class Saturation(FactorTone):
    """Chrominance in YIQ times `factor`: 0 is grey, 1 changes nothing."""


@dataclass(frozen=True)
class Hue(Operation):
    """Chrominance in YIQ turned by `degrees`."""

    degrees: Parameter
    p: float = 1.0
    rules: ClassVar = {"degrees": within(-360, 360), "p": CHANCE}


@dataclass(frozen=True)
class Colour(Operation):
    """Neighbouring changes of brightness, contrast, saturation and hue as one: a 3 x 4 matrix, row
    by row, whose last column is added in shares of the range. Rounded and clipped once, at the end.
    """

    tones: tuple[FactorTone | Hue, ...]
    numbers = 12

    def plan(self, draws: Draws, size: Size) -> Planned:
        """Return the product of the matrices, the first tone's innermost."""
        product: Any = None
        for tone in self.tones:
            amount = drawn(tone.degrees if isinstance(tone, Hue) else tone.factor, draws)
            if draws.next() < tone.p:
                product = _toned(np.eye(3, 4) if product is None else product, tone, amount=amount)
        return IDENTITY_MATRIX if product is None else product.ravel().tolist(), size


def _toned(matrix: Any, tone: FactorTone | Hue, *, amount: float) -> Any:
    """Return the matrix of `matrix` and then `tone`."""
    if isinstance(tone, Hue):
        cos, sin = math.cos(math.radians(amount)), math.sin(math.radians(amount))
        return (LUMA + CHROMA * cos + QUARTER_TURN * sin) @ matrix
    if isinstance(tone, Saturation):
        return (LUMA + CHROMA * amount) @ matrix
    matrix = matrix * amount
    if isinstance(tone, Contrast):
        matrix[:, 3] += CONTRAST_MIDDLE * (1 - amount)
    return matrix


@dataclass(frozen=True)
class GaussianBlur(Operation):
    """Gaussian blur of `sigma` pixels: (sigma, window); a window of 1 leaves the image unchanged.
    Edges are mirrored without their outermost pixel."""

    sigma: Parameter
    p: float = 1.0
    numbers = 2
    rules: ClassVar = {"sigma": within(0, 50), "p": CHANCE}

    def plan(self, draws: Draws, size: Size) -> Planned:
        """Draw sigma; the window reaches three sigmas to both sides."""
        sigma = drawn(self.sigma, draws)
        if draws.next() >= self.p or sigma <= 0:
            return (1.0, 1.0), size
        return (sigma, 2 * math.ceil(BLUR_RADIUS_SIGMAS * sigma) + 1), size


@dataclass(frozen=True)
class Erase(Operation):
    """Random erasing or cutout: a rectangle of `fill`, of random area (in shares of the image) and
    aspect ratio: (y, x, height, width), within the image; without area if there is none."""

    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    fill: float = 0
    p: float = 0.5
    numbers = 4
    rules: ClassVar = {"scale": span(0, 1), "ratio": RATIO, "fill": LEVEL, "p": CHANCE}

    def plan(self, draws: Draws, size: Size) -> Planned:
        """Draw the rectangle; one that is larger than the image is cut at its sides."""
        high, wide = size
        area = high * wide * Uniform(*self.scale).draw(draws)
        ratio = LogUniform(*self.ratio).draw(draws)
        height = min(high, max(1, round(math.sqrt(area / ratio))))
        width = min(wide, max(1, round(math.sqrt(area * ratio))))
        y, x = int(draws.next() * (high - height + 1)), int(draws.next() * (wide - width + 1))
        return ((y, x, height, width) if draws.next() < self.p else (0.0,) * 4), size


def _per_channel(least: float) -> Rule:
    rule = within(least, 1e9, constant=True)

    def checked(name: str, value: Any) -> tuple[float, ...]:
        row = tuple(value) if isinstance(value, Sequence) else (value,)
        if len(row) not in (1, 3):
            raise OptionError(
                f"{name}={value!r}): must be one number, or one for each of 3 channels"
            )
        return tuple(float(rule(name, one)) for one in row)

    return checked


@dataclass(frozen=True)
class Normalize(Operation):
    """(value - mean) / std to float32, for each channel, in the units of the values: 0 to 255."""

    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]
    rank = Operation.NORMALIZE
    rules: ClassVar = {"mean": _per_channel(-1e9), "std": _per_channel(1e-9)}

    def of_channels(self, channels: int) -> tuple[list[float], list[float]]:
        """Return the means and deviations of so many channels. Raise SpecError if there is another
        number of them."""
        rows: Any = self.mean, self.std
        for name, row in zip(("mean", "std"), rows, strict=True):
            if len(row) not in (1, channels):
                raise SpecError(
                    f"Normalize({name}={row}): the image has {channels} "
                    f"channel{'s' if channels > 1 else ''}: must be one number, or one for each "
                    "channel"
                )
        means, deviations = (list(row) * (channels // len(row)) for row in rows)
        return means, deviations


def _float_name(name: str, value: Any) -> str:
    with suppress(TypeError, ValueError):
        value = np.dtype(value).name
    return str(one_of("float16", "float32")(name, value))


@dataclass(frozen=True)
class Cast(Operation):
    """Conversion to "float32" or "float16"."""

    dtype: Any
    rank = Operation.CAST
    rules: ClassVar = {"dtype": _float_name}


@dataclass(frozen=True)
class Layout(Operation):
    """Channels last ("HWC") or first ("CHW")."""

    order: str
    rank = Operation.LAYOUT
    rules: ClassVar = {"order": one_of("HWC", "CHW")}


TONES = (Brightness, Contrast, Saturation, Hue)
PIXELS = (RandomResizedCrop, Resize, Crop, Flip, Affine, *TONES, GaussianBlur, Erase)
OPERATIONS = (Decode, *PIXELS, Normalize, Cast, Layout)
