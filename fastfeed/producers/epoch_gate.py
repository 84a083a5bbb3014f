"""Which epochs producers may begin: those of the present run, and those of the next one once it is
sure to come."""

from __future__ import annotations

import threading
from dataclasses import dataclass

POLL_S = 0.2


@dataclass(frozen=True)
class EpochPlan:
    """What a feed runs through: the root seed, every epoch that there can be, how many of them may
    be begun before `allow` is called, and, for each stream of a callable, the items of the first
    epoch that were delivered before."""

    seed: int
    epochs: range
    allowed: int
    passed: tuple[int, ...] = ()


class EpochGate:
    """Lets producers begin epochs: `allow` for the consumer, `admit` for producers, `close` for any
    thread."""

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self._closed = False
        self._changed = threading.Condition()

    def allow(self, epochs: int) -> None:
        """Allow `epochs` epochs in all."""
        with self._changed:
            self.allowed = max(self.allowed, epochs)
            self._changed.notify_all()

    def close(self) -> None:
        """Allow no other epoch. A signal handler may call this inside `allow`: those that wait
        check the flag by themselves."""
        self._closed = True
        if self._changed.acquire(timeout=0):
            self._changed.notify_all()
            self._changed.release()

    def admit(self, position: int) -> bool:
        """Wait until the epoch at `position` may be begun; return False once the gate is closed."""
        with self._changed:
            while position >= self.allowed and not self._closed:
                self._changed.wait(POLL_S)
        return not self._closed
