"""Holder of the interpreter lock, inferred from the delay with which the sampler gets it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

SWITCHING = 0.1
MIN_LATE_SAMPLES = 8
# Without contention a thread gets the lock within 0.1 ms, seldom after more than 0.3 ms.
LATE_S = 4e-4  # a thread that got it later had to wait for it
CONTENDED_S = 1e-3  # typical lateness from which the lock slows a training step


class Wanting(NamedTuple):
    """A thread when the sampler got the lock late: its CPU seconds since the last sample, and True
    if it waits in a futex, as threads do that want the interpreter lock back."""

    cpu_s: float
    wants: bool


def holders(threads: Sequence[Wanting], late_s: float) -> list[float]:
    """Return how likely each thread was to hold the lock before the sampler got it (the sum is 1,
    or all are 0).

    A thread that had to release it wants it back: such threads come first, weighted by CPU time;
    those on a core may be about to wait, and count little. If none wants it, the holder released it
    voluntarily: it has used a core for at least as long as the sampler waited.
    """
    if any(one.wants and one.cpu_s > 0 for one in threads):
        weights = [one.cpu_s * (1.0 if one.wants else SWITCHING) for one in threads]
    else:
        weights = [one.cpu_s if one.cpu_s >= late_s * 0.5 else 0.0 for one in threads]
    total = sum(weights)
    return [weight / total if total else 0.0 for weight in weights]


def held(credit: float, late: int, *, samples: int, blind: int, cpu: float) -> float:
    """Return the share of time for which a thread held the lock: its credit (of `late` samples, of
    `samples` in all), at most its share of a core. If the lock was never seen held, bytecode ran
    too seldom to count.

    In `blind` samples the sampler waited for a core and then not for the lock. They prove nothing:
    the sampler may have been queued behind the very thread that held it, which frees the core with
    the lock.
    """
    if not samples or not late:
        return 0.0
    tell = samples - blind if samples - blind >= MIN_LATE_SAMPLES else samples
    return min(cpu, credit / tell)


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the value that `share` of the values are below; None if there are none."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None
