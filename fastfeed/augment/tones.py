"""Brightness, contrast, saturation and hue as matrices over (red, green, blue, 1), of which 1 is the dtype's range.

Hue turns the plane of the two chrominance axes of YIQ, saturation scales it (as DALI and GIMP's older hue do; HSV's
hexagon is another convention). The axes: FCC NTSC standard, 1953.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from fastfeed.augment.parameters import Parameter

Flat = tuple[float, ...]  # 3 x 4, row by row
MATRIX: Flat = (1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0)
MIDDLE = 128 / 255  # what contrast leaves as it is, in shares of the range
TO_YIQ = ((0.299, 0.587, 0.114), (0.596, -0.274, -0.321), (0.211, -0.523, 0.311))


@dataclass(frozen=True)
class Tone:
    """One change, made with probability `p`: brightness, contrast, saturation (a factor) or hue (degrees)."""

    kind: str
    amount: Parameter
    p: float


def matrix_of(kind: str, amount: float, *, after: Flat) -> Flat:
    """The change of `kind` behind what `after` does."""
    if kind in ("brightness", "contrast"):
        added = 0.0 if kind == "brightness" else MIDDLE * (1 - amount)
        return tuple(amount * v + (added if n % 4 == 3 else 0.0) for n, v in enumerate(after))
    rows = _chroma(amount, 0.0) if kind == "saturation" else _chroma(1.0, amount)
    return tuple(sum(rows[row][k] * after[4 * k + column] for k in range(3)) for row in range(3) for column in range(4))


def _chroma(saturation: float, degrees: float) -> tuple[tuple[float, ...], ...]:
    keep, along, across = _axes()
    cos, sin = saturation * math.cos(math.radians(degrees)), saturation * math.sin(math.radians(degrees))
    return tuple(tuple(keep[i][j] + cos * along[i][j] + sin * across[i][j] for j in range(3)) for i in range(3))


@cache
def _axes() -> tuple[list[list[float]], list[list[float]], list[list[float]]]:
    """What of a colour stays, what scales with the cosine of hue's angle, and what with its sine."""
    to_yiq = np.array(TO_YIQ)
    back = np.linalg.inv(to_yiq)
    stays, turns, swaps = np.diag([1.0, 0, 0]), np.diag([0, 1.0, 1.0]), np.zeros((3, 3))
    swaps[1, 2], swaps[2, 1] = -1, 1
    keep, along, across = ((back @ middle @ to_yiq).tolist() for middle in (stays, turns, swaps))
    return keep, along, across
