"""Effect of a dose on the period of a loop, from paired blocks of its steps: pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

# Student's t for an interval of 95 %, by the number of pairs
T_OF_PAIRS = {4: 3.182, 6: 2.571, 8: 2.365, 10: 2.262, 12: 2.201}
# A period contains a pause if it is this multiple of the next longest one of its kind, and of the
# usual ones without their longest twentieth.
PAUSE_RATIO = 5.0


def pairs_of(
    control: tuple[Sequence[float], Sequence[float]],
    dosed: Sequence[float],
    *,
    usual: Sequence[float],
) -> list[float]:
    """Return the logarithms of dosed by control periods, of two pairs of blocks.

    `control`: periods before and after the dosed ones, so that a drift affects both kinds alike.
    `usual`: periods before them. There are no pairs if a block has less than two
    periods, or if one contains a pause.
    """
    first, last = control
    blocks = first, dosed[: len(dosed) // 2], dosed[len(dosed) // 2 :], last
    long_s = sorted(usual)[-1 - len(usual) // 20] if usual else 0.0
    for block in (sorted([*first, *last]), sorted(dosed)):
        paused = block[-1:] > [PAUSE_RATIO * max(*block[-2:-1], long_s, 0.0)]
        if paused or min(map(len, blocks)) < 2:
            return []
    one, two, three, four = (max(1e-9, fmean(block)) for block in blocks)
    return [math.log(two / one), math.log(three / four)]


def effect_of(pairs: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Return how much longer a dosed period is, as a share of the usual one, with the 95 % interval
    of the mean of these pairs."""
    middle = fmean(pairs)
    error = T_OF_PAIRS[len(pairs)] * stdev(pairs) / math.sqrt(len(pairs))
    return math.expm1(middle), (math.expm1(middle - error), math.expm1(middle + error))
