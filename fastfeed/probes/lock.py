"""Holder of the interpreter lock, inferred from the delay with which the sampler gets it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

SWITCHING = 0.1  # weight of a thread on a core that may be about to wait for the lock
MIN_LATE_SAMPLES = 8
# Without contention a thread gets the lock within 0.1 ms, seldom after more than 0.3 ms.
LATE_S = 4e-4  # a longer delay is a wait for the lock
CONTENDED_S = 1e-3  # typical lateness from which the lock slows a training step


class LockCandidate(NamedTuple):
    """A thread that may have held the lock when the sampler got it late.

    `cpu_s` is its CPU time since the last sample. `wants` is True if it waits in a futex, as a
    thread does that wants the lock back.
    """

    cpu_s: float
    wants: bool


def holder_likelihoods(threads: Sequence[LockCandidate], late_s: float) -> list[float]:
    """Return the likelihood of each thread to have held the lock before the sampler got it.

    The sum is 1, or all are 0. A thread that had to release the lock wants it back: such threads
    count by their CPU time. Threads on a core may be about to wait, and count little. If no thread
    wants the lock, its holder released it voluntarily, after it had used a core for at least as
    long as the sampler waited.
    """
    if any(one.wants and one.cpu_s > 0 for one in threads):
        weights = [one.cpu_s * (1.0 if one.wants else SWITCHING) for one in threads]
    else:
        weights = [one.cpu_s if one.cpu_s >= late_s * 0.5 else 0.0 for one in threads]
    total = sum(weights)
    return [weight / total if total else 0.0 for weight in weights]


def held_share(credit: float, late: int, *, samples: int, blind: int, cpu: float) -> float:
    """Return the share of time for which a thread held the lock.

    It is the thread's credit, the sum of its likelihoods in `late` of all `samples`, and at most
    its share of a core. Without late samples bytecode ran too seldom to count.

    In `blind` samples the sampler waited for a core and then not for the lock. They prove nothing:
    the sampler may have been queued behind the holder, which frees the core with the lock.
    """
    if not samples or not late:
        return 0.0
    conclusive = samples - blind
    return min(cpu, credit / (conclusive if conclusive >= MIN_LATE_SAMPLES else samples))


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the value below which `share` of the values lie, or None without values."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None
