"""Gate that limits which epochs may begin: an epoch begins only when the consumer is sure to want
it."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from fastfeed.producers.buffer import STOP_CHECK_S


@dataclass(frozen=True)
class EpochPlan:
    """Plan of a feed's epochs: the root seed, the range of all epochs, and how many of them may
    begin before `allow` raises that number. `passed` holds, for each stream of a callable, the
    items of the first epoch that were delivered in an earlier run."""

    seed: int
    epochs: range
    allowed: int
    passed: tuple[int, ...] = ()


class EpochGate:
    """Gate with `allow` for the consumer, `admit` for producers, and `close` for any thread."""

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self._closed = False
        self._changed = threading.Condition()

    def allow(self, epochs: int) -> None:
        """Set how many epochs in all may begin."""
        with self._changed:
            self.allowed = max(self.allowed, epochs)
            self._changed.notify_all()

    def close(self) -> None:
        """Begin no other epoch. A signal handler may call this inside `allow`: the waits then check
        by themselves."""
        self._closed = True
        if self._changed.acquire(timeout=0):
            self._changed.notify_all()
            self._changed.release()

    def admit(self, position: int) -> bool:
        """Wait until the epoch at `position` may begin. Return False once the gate is closed."""
        with self._changed:
            while position >= self.allowed and not self._closed:
                self._changed.wait(STOP_CHECK_S)
        return not self._closed
