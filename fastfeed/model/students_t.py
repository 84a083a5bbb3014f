"""Student's t, for intervals of a mean from few values (Student, 1908)."""

from __future__ import annotations

import math

import numpy as np


def students_t(freedom: float, level: float = 0.95) -> float:
    """Return the two-sided quantile of Student's t for `freedom` (1 or more) degrees of freedom, at
    a level (0 to 0.999)."""
    most = 14 if level <= 0.95 else 640  # with one degree it is 12.7, and 637
    t, step = np.linspace(0, most, 140_001, retstep=True)
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    density = np.exp(scale - (freedom + 1) / 2 * np.log1p(t**2 / freedom))
    inner = np.cumsum(density[1:] + density[:-1]) * step / 2 / math.sqrt(freedom * math.pi)
    return float(np.interp(level / 2, inner, t[1:]))
