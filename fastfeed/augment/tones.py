"""Brightness, contrast, saturation and hue as matrices over (red, green, blue, 1), where 1 is the
range of the dtype.

Hue turns the plane of the two chrominance axes of YIQ, saturation scales it (as DALI and GIMP's
older hue do; HSV's hexagon is another convention). The axes: FCC NTSC standard, 1953.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from fastfeed.augment.parameters import Parameter

FlatMatrix = tuple[float, ...]  # 3 x 4, row by row
IDENTITY_MATRIX: FlatMatrix = (1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0)
CONTRAST_MIDDLE = 128 / 255  # the level that contrast keeps, in shares of the range
TO_YIQ = ((0.299, 0.587, 0.114), (0.596, -0.274, -0.321), (0.211, -0.523, 0.311))


@dataclass(frozen=True)
class Tone:
    """One change, made with probability `p`: brightness, contrast, saturation (a factor) or hue
    (degrees)."""

    kind: str
    amount: Parameter
    p: float


def matrix_of(kind: str, amount: float, *, after: FlatMatrix) -> FlatMatrix:
    """Return the matrix of a change applied to the result of `after`.

    The product is written out: loops took four times as long, in every record.
    """
    a, b, c, d, e, f, g, h, i, j, k, m = after
    if kind in ("brightness", "contrast"):
        t, added = amount, 0.0 if kind == "brightness" else CONTRAST_MIDDLE * (1 - amount)
        red, green = (t * a, t * b, t * c, t * d + added), (t * e, t * f, t * g, t * h + added)
        return (*red, *green, t * i, t * j, t * k, t * m + added)
    p, q, r, s, t, u, v, w, x = (
        _chroma(amount, 0.0) if kind == "saturation" else _chroma(1.0, amount)
    )
    return (
        *(
            p * a + q * e + r * i,
            p * b + q * f + r * j,
            p * c + q * g + r * k,
            p * d + q * h + r * m,
        ),
        *(
            s * a + t * e + u * i,
            s * b + t * f + u * j,
            s * c + t * g + u * k,
            s * d + t * h + u * m,
        ),
        *(
            v * a + w * e + x * i,
            v * b + w * f + x * j,
            v * c + w * g + x * k,
            v * d + w * h + x * m,
        ),
    )


def _chroma(saturation: float, degrees: float) -> list[float]:
    """Return the 3 x 3 matrix, row by row."""
    cos, sin = (
        saturation * math.cos(math.radians(degrees)),
        saturation * math.sin(math.radians(degrees)),
    )
    return [keep + cos * along + sin * across for keep, along, across in _axes()]


@cache
def _axes() -> list[tuple[float, float, float]]:
    """Return for each place of the matrix the constant part, and the factors of the cosine and the
    sine of the angle of the hue."""
    to_yiq = np.array(TO_YIQ)
    back = np.linalg.inv(to_yiq)
    luma = np.diag([1.0, 0, 0])
    chroma = np.diag([0, 1.0, 1.0])
    quarter_turn = np.array([(0, 0, 0), (0, 0, -1.0), (0, 1.0, 0)])
    keep, along, across = (
        (back @ middle @ to_yiq).ravel().tolist() for middle in (luma, chroma, quarter_turn)
    )
    return list(zip(keep, along, across, strict=True))
