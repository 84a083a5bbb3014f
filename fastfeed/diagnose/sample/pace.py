"""Times at which the sampler takes its samples."""

from __future__ import annotations

import random

MAX_DUE = 25  # samples that one stands for at most: the machine may have been asleep


def next_due(
    due_s: float, now_s: float, *, interval_s: float, rng: random.Random
) -> tuple[float, int]:
    """Return when the next sample is due, and how many were due until now.

    The sample that is taken now stands for all of them. A sample succeeds when the holder of the
    interpreter lock releases it. Samples at a fixed interval after that would always hit the same
    phase of a loop whose phases have constant lengths, so the interval is random.
    """
    count = 0
    while due_s <= now_s and count < MAX_DUE:
        due_s += interval_s * (0.5 + rng.random())
        count += 1
    return max(due_s, now_s), count
