"""Student's t, for intervals of a mean from few values (Student, 1908)."""

from __future__ import annotations

import math

import numpy as np


def students_t(freedom: float) -> float:
    """Return the two-sided 95 % quantile of Student's t for `freedom` (1 or more) degrees of
    freedom."""
    t, step = np.linspace(0, 13, 13001, retstep=True)  # with one degree it is 12.7
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    density = np.exp(scale - (freedom + 1) / 2 * np.log1p(t**2 / freedom))
    inner = np.cumsum(density[1:] + density[:-1]) * step / 2 / math.sqrt(freedom * math.pi)
    return float(np.interp(0.95 / 2, inner, t[1:]))
