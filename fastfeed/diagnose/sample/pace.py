"""The times of samples."""

from __future__ import annotations

import random

MISSED = 25  # due samples that one stands for, at most: a machine may have been asleep


def due_after(
    due_s: float, now_s: float, *, nap_s: float, chance: random.Random
) -> tuple[float, int]:
    """Return when the next sample is due, and how many were due until now: the present one stands
    for all of them.

    A sample happens when the holder of the lock releases it; at a fixed interval after that, the
    sampler would always meet a loop with phases of equal length in the same phase.
    """
    count = 0
    while due_s <= now_s and count < MISSED:
        due_s += nap_s * (0.5 + chance.random())
        count += 1
    return max(due_s, now_s), count
