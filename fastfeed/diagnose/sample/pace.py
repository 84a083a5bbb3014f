"""When the sampler looks."""

from __future__ import annotations

import random

MISSED = 25  # looks that one stands for, at most: a machine may have been asleep


def due_after(
    due_s: float, now_s: float, *, nap_s: float, chance: random.Random
) -> tuple[float, int]:
    """When the next look is due, and how many were until now: the one that is made now stands for
    all of them.

    A look comes when the holder of the lock lets it go; if the next came a fixed time after that,
    it would see a loop whose phases last as long always in the same one.
    """
    count = 0
    while due_s <= now_s and count < MISSED:
        due_s += nap_s * (0.5 + chance.random())
        count += 1
    return max(due_s, now_s), count
