"""Who holds the interpreter lock, from how late the sampler gets it; pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ON_ITS_WAY = 0.1
ENOUGH = 8  # samples
LATE_S = 0.0004  # a thread that nobody keeps waiting is late by 0.1 ms, seldom by more than 0.3


class Wanting(NamedTuple):
    """A thread when the sampler got the lock late: the seconds on a core since the last look, and
    whether it waits in a futex, as those do that want the interpreter lock back."""

    cpu_s: float
    wants: bool


def holders(threads: Sequence[Wanting], late_s: float) -> list[float]:
    """How likely each thread was to hold the lock before the sampler got it (adds up to 1, or all
    0).

    Who had to give it up wants it back, so that such threads come first, by the time that they
    spent on a core; those on a core may be on their way to wait, and count for little. If nobody
    wants it, the holder gave it up by itself: it has used a core for at least as long as the
    sampler waited.
    """
    if any(one.wants and one.cpu_s > 0 for one in threads):
        weights = [one.cpu_s * (1.0 if one.wants else ON_ITS_WAY) for one in threads]
    else:
        weights = [one.cpu_s if one.cpu_s >= late_s * 0.5 else 0.0 for one in threads]
    total = sum(weights)
    return [weight / total if total else 0.0 for weight in weights]


def held(credit: float, late: int, *, samples: int, blind: int, cpu: float) -> float:
    """The share of time in which a thread held the lock: its credit (of `late` samples, of
    `samples` in all), at most its share of a core; where the lock was never seen held, bytecode ran
    too seldom to count.

    In `blind` samples the sampler waited for a core and then not for the lock. That says nothing:
    it may have been queued behind the very thread that held it, which frees the core when it gives
    the lock away.
    """
    if not samples or not late:
        return 0.0
    tell = samples - blind if samples - blind >= ENOUGH else samples
    return min(cpu, credit / tell)


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value that `share` of the values are below; None of nothing."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None
