"""The steps that executors execute, and the numbers of each for one record.

A record's plan is a flat row of numbers, a fixed count for each step. Coordinates are in pixels of
the image that a step gets, (0, 0) its upper left corner: the centre of the first pixel is at (0.5,
0.5).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from fastfeed.augment.draws import Draws
from fastfeed.augment.parameters import Distribution, Parameter, drawn
from fastfeed.augment.tones import IDENTITY_MATRIX, Tone, matrix_of

Size = tuple[int, int]  # height, width
Planned = tuple[Sequence[float], Size]
MAX_WINDOW_DRAWS = 10  # as in torchvision
# Half the window of a truncated Gaussian: the rest is below half a level of uint8.
BLUR_RADIUS_SIGMAS = 3.0
IDENTITY_WARP = (1, 0, 0, 0, 1, 0)
MAX_LEVEL = {"uint8": 255, "uint16": 65535}  # of a pixel, by its dtype


class ProgramStep(Protocol):
    """One change of an image."""

    @property
    def numbers(self) -> int:
        """The count of numbers of the step in a plan."""

    def plan(self, draws: Draws, size: Size) -> Planned:
        """Return the numbers of the step for an image of `size`, and the size of the result."""


@dataclass(frozen=True)
class RandomWindow:
    """A window of random area and aspect ratio: (y, x, height, width), within the image."""

    scale: tuple[float, float]
    ratio: tuple[float, float]
    numbers = 4

    def plan(self, draws: Draws, size: Size) -> Planned:
        """Draw a window like RandomResizedCrop of torchvision: after ten windows that do not fit,
        return the largest centred window of an allowed ratio."""
        high, wide = size
        min_area, area_range, min_log_ratio, log_ratio_range = self._draw_ranges
        for _ in range(MAX_WINDOW_DRAWS):
            # Uniform and LogUniform are inlined: their calls took half the time
            area = high * wide * (min_area + area_range * draws.next())
            ratio = math.exp(min_log_ratio + log_ratio_range * draws.next())
            width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < width <= wide and 0 < height <= high:
                y, x = (
                    int(draws.next() * (high - height + 1)),
                    int(draws.next() * (wide - width + 1)),
                )
                return (y, x, height, width), (height, width)
        ratio = min(max(wide / high, self.ratio[0]), self.ratio[1])
        width, height = (
            max(1, min(wide, round(high * ratio))),
            max(1, min(high, round(wide / ratio))),
        )
        return ((high - height) // 2, (wide - width) // 2, height, width), (height, width)

    @cached_property
    def _draw_ranges(self) -> tuple[float, float, float, float]:
        (low, high), (narrow, wide) = self.scale, map(math.log, self.ratio)
        return low, high - low, narrow, wide - narrow


@dataclass(frozen=True)
class FixedWindow:
    """A window of one size at a relative place: (y, x, height, width); outside of the image is
    `fill`."""

    height: int
    width: int
    y: Parameter  # 0: at the upper edge, 1: at the lower one
    x: Parameter
    fill: float
    numbers = 4

    def plan(self, draws: Draws, size: Size) -> Planned:
        """Return the window. In an image that is smaller, its place is computed alike."""
        y = math.floor(drawn(self.y, draws) * (size[0] - self.height) + 0.5)
        x = math.floor(drawn(self.x, draws) * (size[1] - self.width) + 0.5)
        return (y, x, self.height, self.width), (self.height, self.width)


@dataclass(frozen=True)
class Scale:
    """Another size: (height, width). Sampled at pixel centres; `antialias` filters where the image
    gets smaller."""

    height: int
    width: int
    shorter: int  # instead of both: the length of the shorter side
    interpolation: str  # "nearest", "linear" or "cubic"
    antialias: bool
    numbers = 2

    def plan(self, draws: Draws, size: Size) -> Planned:
        """Return the size, without a draw."""
        new = (self.height, self.width)
        if self.shorter:
            short = min(size)
            high, wide = (max(1, math.floor(side * self.shorter / short + 0.5)) for side in size)
            new = (high, wide)
        return new, new


@dataclass(frozen=True)
class Mirror:
    """Flips: (left to right, upside down), each 0 or 1."""

    horizontal: float
    vertical: float
    numbers = 2

    def plan(self, draws: Draws, size: Size) -> Planned:
        """Draw each flip with its own probability."""
        return (float(draws.next() < self.horizontal), float(draws.next() < self.vertical)), size


@dataclass(frozen=True)
class Warp:
    """A turn about the centre, shear, scale and shift on the same canvas: the 2 x 3 matrix, row by
    row, that maps a place in the new image to its place in the old one."""

    degrees: Parameter
    shift: tuple[Parameter, Parameter]  # down and right, in shares of the sides
    scale: Parameter
    shear: Parameter  # degrees
    fill: float
    interpolation: str
    p: float
    numbers = 6

    def plan(self, draws: Draws, size: Size) -> Planned:
        """Return the inverse of: shear, scale, turn counter-clockwise, shift."""
        high, wide = size
        turn, down, right = (drawn(p, draws) for p in (self.degrees, *self.shift))
        scale, shear = drawn(self.scale, draws), drawn(self.shear, draws)
        if draws.next() >= self.p:
            return IDENTITY_WARP, size
        cos, sin = math.cos(math.radians(turn)), math.sin(math.radians(turn))
        slant = math.tan(math.radians(shear))
        # Forward, in x to the right and y down: p' = c + shift + R S (p - c), R S = [[a, b], [d,
        # e]].
        a, b = scale * cos, scale * (cos * slant + sin)
        d, e = -scale * sin, scale * (cos - sin * slant)
        det = a * e - b * d
        ia, ib, id_, ie = e / det, -b / det, -d / det, a / det
        cx, cy = wide / 2, high / 2
        ox, oy = cx + right * wide, cy + down * high
        return (ia, ib, cx - ia * ox - ib * oy, id_, ie, cy - id_ * ox - ie * oy), size


@dataclass(frozen=True)
class Colour:
    """Neighbouring changes of brightness, contrast, saturation and hue as one: a 3 x 4 matrix, row
    by row, whose last column is added in shares of the range of the dtype. Rounded and clipped
    once, at the end."""

    tones: tuple[Tone, ...]
    numbers = 12

    def plan(self, draws: Draws, size: Size) -> Planned:
        """Return the product of the matrices, the first tone's innermost."""
        product = IDENTITY_MATRIX
        for tone in self.tones:
            amount = drawn(tone.amount, draws)
            if draws.next() < tone.p:
                product = matrix_of(tone.kind, amount, after=product)
        return product, size


@dataclass(frozen=True)
class Blur:
    """Gaussian blur: (sigma, window), in pixels; a window of 1 leaves the image unchanged. Edges
    are mirrored without their outermost pixel."""

    sigma: Parameter
    p: float
    numbers = 2

    def plan(self, draws: Draws, size: Size) -> Planned:
        """Draw sigma; the window reaches three sigmas to both sides."""
        sigma = drawn(self.sigma, draws)
        if draws.next() >= self.p or sigma <= 0:
            return (0.0, 1.0), size
        return (sigma, 2 * math.ceil(BLUR_RADIUS_SIGMAS * sigma) + 1), size


@dataclass(frozen=True)
class Cutout:
    """Rectangles of `fill`: (y, x, height, width) for each, within the image; without area if there
    is none."""

    scale: Distribution
    ratio: Distribution
    fill: float
    count: int
    p: float

    @property
    def numbers(self) -> int:
        """Four for each rectangle."""
        return 4 * self.count

    def plan(self, draws: Draws, size: Size) -> Planned:
        """Draw the rectangles; those larger than the image are cut at its sides."""
        high, wide = size
        found: list[float] = []
        for _ in range(self.count):
            area, ratio = high * wide * self.scale.draw(draws), self.ratio.draw(draws)
            height = min(high, max(1, round(math.sqrt(area / ratio))))
            width = min(wide, max(1, round(math.sqrt(area * ratio))))
            y, x = int(draws.next() * (high - height + 1)), int(draws.next() * (wide - width + 1))
            found += (y, x, height, width)
        return (found if draws.next() < self.p else [0.0] * self.numbers), size


@dataclass(frozen=True)
class Blend:
    """Mixup: the share of the record itself; the rest is the next one of its batch, of the last one
    the first. Zhang et al., "mixup: Beyond Empirical Risk Minimization" (2018)."""

    alpha: float
    p: float
    numbers = 1

    def plan(self, draws: Draws, size: Size) -> Planned:
        """Draw from Beta(alpha, alpha) by Johnk's method, mirrored to at least a half, so that a
        record stays mostly itself."""
        for _ in range(100):
            a, b = (max(draws.next(), 1e-300) ** (1 / self.alpha) for _ in range(2))
            if 0 < a + b <= 1:
                break
        else:
            a, b = 1.0, 0.0
        share = max(a, b) / (a + b)
        return (share if draws.next() < self.p else 1.0,), size


@dataclass(frozen=True)
class Constant:
    """A step that is the same for every record, and has no numbers in its plan."""

    numbers = 0

    def plan(self, draws: Draws, size: Size) -> Planned:
        """Return no numbers, without a draw."""
        return (), size
